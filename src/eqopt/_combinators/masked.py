"""Transforms only some leaves."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax

from .._arguments.extra import required_params, with_functions
from .._arguments.fields import static_choice
from .._core import AbstractTransformation, AbstractWrapper, Call
from .._trees.leaves import is_leaf, parameters, restrict
from .._trees.masks import is_function, mask_out, resolve
from .._trees.parts import seeing_part
from .._trees.routes import Report, takes_examples
from .._trees.states import check_state
from .._trees.stored import load
from .._types import Mask, Model, Params, PyTree, State


class MaskedState(eqx.Module):
    """`inner_state`: the inner state, with `None` at every masked-out leaf."""

    inner_state: State


class Masked(AbstractWrapper):
    """Applies a transformation to some leaves; all other updates stay unchanged.

    Leaves that are masked out have no state. Without any update for its leaves, `inner`
    does not run, so its counts are of steps in which something was trained.

    !!! warning

        If `inner` is a whole optimizer, the raw gradients of all other parameters are
        added to these parameters, which moves them uphill. To train only some
        parameters, put [`eqopt.Freeze`][] after it.

    !!! example

        ```python
        is_matrix = lambda params: jax.tree.map(lambda p: p.ndim >= 2, params)
        decay = eqopt.Masked(eqopt.AddDecayedWeights(1e-4), is_matrix)
        ```

    **Arguments:**

    - `inner`: the transformation.
    - `mask`: which leaves it transforms: a tree of Python bools with the structure of
        the parameters or a prefix of it, or a function of the parameters that returns
        one. An `eqx.Module` or another node of a tree is a tree, even if it can be
        called. Values at leaves that are not parameters do not matter.

    **Raises:**

    A `ValueError` or `TypeError` that names the key path, in `init` and `update`, if the
    mask does not fit the parameters or holds anything but Python bools.
    """

    inner: AbstractTransformation
    mask: Mask = static_choice()

    @property
    def _stores_in_turn(self) -> bool:  # pyright: ignore  # of a constant
        return self.inner._stores_in_turn

    def init(self, params: Params) -> MaskedState:
        chosen = self._chosen(params, params)
        with seeing_part(params):
            return MaskedState(self.inner.init(chosen))

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        chosen = self._chosen(params, params)
        with seeing_part(params):
            new = self.inner.eval_params(state.inner_state, chosen)
        return eqx.combine(new, params)

    def _route(self, report: Report, params: Params) -> None:
        chosen = self._chosen(params, params)
        with seeing_part(params):
            self.inner._route(report, chosen)

    def handle(self, call: Call, state: MaskedState) -> tuple[Any, MaskedState]:
        check_has_shapes(self, self.mask, call)
        outside = mask_out(call.updates, self.mask, call.params, keep=False)
        with seeing_part(call.params, call.updates):
            part = part_of(call, self._chosen)
            new, inner_state = part.run(self.inner, state.inner_state)
        others = call._replace(updates=outside).unchanged()
        return eqx.combine(new, others, is_leaf=is_leaf), MaskedState(inner_state)

    def _chosen(self, tree: PyTree | None, params: Params | None) -> Any:
        return None if tree is None else mask_out(tree, self.mask, params)


def part_of(
    call: Call, choose: Callable[[PyTree | None, Params | None], PyTree | None]
) -> Call:
    """The call for a transformation that sees part of the parameters.

    `choose` selects that part of its first argument, a tree like the parameters. The
    second argument is the parameters.
    """
    updates, params, extra, is_step, _ = call
    part = choose(params, params)
    extra = extra_of_part(extra, part, params)
    return Call(choose(updates, params), part, extra, is_step)


def check_has_shapes(owner: AbstractTransformation, given: Any, call: Call) -> None:
    """Raises a `ValueError` if `given` chooses otherwise by gradients of examples.

    Without `params`, a function of the parameters sees the gradients, and these have one
    more axis for a part that aggregates them.
    """
    if call.params is None and is_function(given) and takes_examples(owner):
        one = jax.tree.map(lambda g: g.sum(0) if g.ndim else g, call.updates)
        flags, expected = (resolve("mask", given, x, None) for x in (call.updates, one))
        if flags != expected:
            required_params(owner, None)


def extra_of_part(
    extra: Mapping[str, Any], part: Params | None, params: Params | None
) -> Mapping[str, Any]:
    """The extra arguments for a transformation that sees part of the parameters."""
    if part is None:
        return extra
    trained = parameters(part)
    chosen = lambda name: lambda tree: restrict(tree, trained, name, "params")
    to_model = lambda part: eqx.combine(part, load(params))
    extra = with_functions(extra, to_model, chosen("grad_fn(params)"))
    if extra.get("grad") is not None:
        extra = {**extra, "grad": chosen("grad")(extra["grad"])}
    return extra
