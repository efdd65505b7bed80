"""Transforms only some leaves, or keeps some unchanged."""

import abc
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._arguments.extra import required_params, with_functions
from .._arguments.fields import static_choice
from .._core import (
    AbstractStateless,
    AbstractTransformation,
    AbstractWrapper,
    Call,
    Leafwise,
    equation,
)
from .._trees.leaves import is_leaf, parameters, restrict
from .._trees.masks import is_function, mask_out, resolve
from .._trees.parts import seeing_part
from .._trees.routes import Report, takes_examples
from .._trees.stored import load
from .._types import Mask, Model, Params, PyTree, State, Updates


class _OnPart(AbstractWrapper):
    """A wrapper around a transformation of some leaves."""

    inner: eqx.AbstractVar[AbstractTransformation]

    @property
    @abc.abstractmethod
    def _flags(self) -> tuple[Mask, bool]:
        """A mask, and which of its values chooses the leaves of `inner`."""

    def _part(self, tree: PyTree | None, params: Params | None) -> Any:
        mask, keep = self._flags
        return None if tree is None else mask_out(tree, mask, params, keep)

    def _rest(self, tree: PyTree, params: Params | None) -> PyTree:
        mask, keep = self._flags
        return mask_out(tree, mask, params, not keep)

    def _init(self, params: Params) -> State:
        part = self._part(params, params)
        with seeing_part(params):
            return self.inner.init(part)

    def _run(self, call: Call, inner_state: State) -> tuple[Any, State]:
        check_has_shapes(self, self._flags[0], call)
        updates, params, extra, is_step, _ = call
        part = self._part(params, params)
        extra = extra_of_part(extra, part, params)
        inner = Call(self._part(updates, params), part, extra, is_step)
        with seeing_part(params, updates):
            return inner.run(self.inner, inner_state)

    def eval_params(self, state: State, params: Model) -> Model:
        part = self._part(params, params)
        with seeing_part(params):
            new = super().eval_params(state, part)
        return eqx.combine(new, params)

    def _route(self, report: Report, params: Params) -> None:
        part = self._part(params, params)
        with seeing_part(params):
            self.inner._route(report, part)


class MaskedState(eqx.Module):
    """`inner_state`: the inner state, with `None` at every masked-out leaf."""

    inner_state: State


class Masked(_OnPart):
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
    def _flags(self) -> tuple[Mask, bool]:
        return self.mask, True

    def _in_turn(self, params: Params, state: State, updates: Updates) -> State:
        return MaskedState(self.inner._in_turn(params, state.inner_state, updates))

    def init(self, params: Params) -> MaskedState:
        return MaskedState(self._init(params))

    def handle(self, call: Call, state: MaskedState) -> tuple[Any, MaskedState]:
        new, inner_state = self._run(call, state.inner_state)
        rest = call._replace(updates=self._rest(call.updates, call.params))
        result = eqx.combine(new, rest.unchanged(), is_leaf=is_leaf)
        return result, MaskedState(inner_state)


class SelectiveTransformState(eqx.Module):
    """`inner_state`: the inner state, with `None` at every leaf that is frozen."""

    inner_state: State


class SelectiveTransform(_OnPart):
    """Trains some parameters, and keeps all others unchanged, without state for them.

    The updates of the others become zero, even if the gradient is not finite.

    !!! example

        ```python
        nothing = jax.tree.map(lambda _: False, model)
        frozen = eqx.tree_at(lambda m: m.encoder, nothing, True)
        opt = eqopt.SelectiveTransform(eqopt.AdamW(1e-3), freeze_mask=frozen)
        ```

    **Arguments:**

    - `inner`: the transformation for the parameters that are not frozen.
    - `freeze_mask`: which leaves are frozen, as in [`eqopt.Masked`][], or a single
        bool.

    **Raises:**

    A `ValueError` or `TypeError` that names the key path, in `init` and `update`, if the
    mask does not fit the parameters or holds anything but Python bools.
    """

    inner: AbstractTransformation
    freeze_mask: Mask = static_choice(kw_only=True)

    @property
    def _flags(self) -> tuple[Mask, bool]:
        return self.freeze_mask, False

    def init(self, params: Params) -> SelectiveTransformState:
        return SelectiveTransformState(self._init(params))

    def handle(
        self, call: Call, state: SelectiveTransformState
    ) -> tuple[Any, SelectiveTransformState]:
        new, inner_state = self._run(call, state.inner_state)
        result = eqx.combine(new, call.nothing())
        return result, SelectiveTransformState(inner_state)

    def _route(self, report: Report, params: Params) -> None:
        with report.inside(type(self).__name__):
            super()._route(report, params)
            report.take("frozen", self._rest(params, params))


def check_has_shapes(owner: AbstractTransformation, given: Any, call: Call) -> None:
    """Raises a `ValueError` if `given` chooses otherwise by gradients of examples.

    Without `params`, a function of the parameters sees the gradients, and these have one
    more axis for a part that aggregates them.
    """
    if call.params is None and is_function(given) and takes_examples(owner):
        one = jax.tree.map(lambda g: g.sum(0) if g.ndim else g, call.updates)
        flags, expected = (resolve("mask", given, x, None) for x in (call.updates, one))
        if flags != expected:
            required_params(None)


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


@equation(elementwise=True)
def zero(g):
    return jnp.zeros_like(g)


class Freeze(AbstractStateless):
    """Makes the updates of some leaves zero, so that these parameters stay unchanged.

    Put it last in a chain, after weight decay. The parameters then stay bit-identical.
    (A transformation before it still holds state for them.)

    !!! example

        ```python
        nothing = jax.tree.map(lambda _: False, model)
        frozen = eqx.tree_at(lambda m: m.encoder, nothing, True)
        opt = eqopt.Chain(eqopt.AdamW(1e-3), eqopt.Freeze(frozen))
        ```

    **Arguments:**

    - `mask`: which leaves are frozen, as in [`eqopt.Masked`][].
    """

    mask: Mask = static_choice()

    def _route(self, report: Report, params: Params) -> None:
        report.take(type(self).__name__, mask_out(params, self.mask, params))

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(zero, mask=self.mask)
