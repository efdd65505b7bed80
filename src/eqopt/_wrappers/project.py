"""Keeps the parameters in a set."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._arguments.fields import static_choice
from .._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    add_updates,
    check_real,
    equation,
    leafwise,
)
from .._transforms.stateless import cast_like
from .._trees.leaves import is_leaf, parameters, restrict
from .._trees.masks import mask_out
from .._types import Mask, Model, Params, PyTree, State


class ProjectState(eqx.Module):
    """`inner_state`: the inner state."""

    inner_state: State


@equation(elementwise=True)
def towards(g, projected, p):
    return projected - p


class Bound(eqx.Module):
    """A hashable `functools.partial` with its arguments as data."""

    fn: Callable
    args: tuple
    names: tuple[str, ...] = eqx.field(static=True)
    values: tuple

    def __call__(self, tree: PyTree) -> PyTree:
        named = dict(zip(self.names, self.values, strict=True))
        return self.fn(*self.args, tree, **named)


def _as_data(projection: Any) -> Any:
    if type(projection) is not functools.partial:
        return projection
    names, values = tuple(projection.keywords), tuple(projection.keywords.values())
    return Bound(projection.func, projection.args, names, values)


class Project(AbstractWrapper):
    r"""Projects the parameters after each step of the inner optimizer.

    $$\theta \leftarrow \Pi(\theta + u)$$

    for the update $u$ of `inner`. With a projection onto a convex set, this is
    projected gradient descent, or its equivalent for other optimizers.

    !!! example

        ```python
        from functools import partial

        ball = partial(eqopt.projections.l2_ball, scale=10.0)
        opt = eqopt.Project(eqopt.Adam(1e-3), ball)
        # Another set for each group:
        opt = eqopt.Project(opt, eqopt.projections.non_negative, mask=is_rate)
        # Each array by itself:
        each = lambda params: jax.tree.map(eqopt.projections.simplex, params)
        opt = eqopt.Project(eqopt.SGD(0.1), each)
        ```

    Parameters without a gradient (`None`) stay unchanged, and are not passed to the
    projection. The initial parameters are not projected before the first step.

    With `step`, the result is in the set. With `update`, the sum of parameters and
    updates is in the set, except for rounding. Nothing may follow this in a chain. Put
    an average outside, `ParamEMA(Project(...))`: a convex set also contains the
    average. An average inside takes the points before the projection, and is projected
    for evaluation.

    **Arguments:**

    - `inner`: the optimizer.
    - `projection`: a function of a tree of parameters, with `None` at all other leaves,
        that returns a tree of the same structure, shapes and dtypes, such as a function
        of `eqopt.projections`. The arguments of a `functools.partial` are data: a
        radius may be a 0-d array.
    - `mask`: which parameters are projected, as in [`eqopt.Masked`][]. Defaults to all.

    **Raises:**

    In `update`, a `ValueError` if `params` is `None`, and a `ValueError` or `TypeError`
    that names the key path if `projection` returns another structure or shape.
    """

    _loads = "params"
    _moves_params = True
    _needs_params = True

    inner: AbstractTransformation
    projection: Callable[[PyTree], PyTree] = eqx.field(converter=_as_data)
    mask: Mask | None = static_choice(default=None)

    def init(self, params: Params) -> ProjectState:
        return ProjectState(self.inner.init(params))

    def handle(self, call: Call, state: ProjectState) -> tuple[Any, State]:
        params = call.params
        if not call.is_step:
            check_real(call.updates, params, "params")
        new, inner_state = call.run(self.inner, state.inner_state)
        moved = new if call.is_step else add_updates(params, new)
        like = call.updates if call.is_step else new
        projected = self._projected(restrict(moved, like), params)
        if not call.is_step:
            reads = {"projected": projected, "p": params}
            projected = leafwise(towards, restrict(new, projected), reads=reads)
        return eqx.combine(projected, new), ProjectState(inner_state)

    def eval_params(self, state: State, params: Model) -> Model:
        """The evaluation parameters of `inner`, projected.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. If `inner` has other
            evaluation parameters, such as an average, these are projected.
        """
        evaluated = super().eval_params(state, params)
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        pairs = zip(leaves, treedef.flatten_up_to(evaluated), strict=True)
        others = treedef.unflatten(None if x is y else y for x, y in pairs)
        return eqx.combine(self._projected(others, params), evaluated)

    def _projected(self, tree: Params, params: Params) -> Params:
        """The projection of the parameters in `tree` that are not masked out."""
        part = parameters(tree)
        if self.mask is not None:
            part = mask_out(part, self.mask, params)
        if not jtu.tree_leaves(part):
            return part
        return cast_like("projection(params)", self.projection(part), part)
