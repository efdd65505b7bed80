"""Excludes invalid values, and overwrites parameters."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._arguments.extra import required_params
from .._core import (
    AbstractLeafwise,
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    check_real,
    check_shapes,
    equation,
    leafwise,
)
from .._trees.leaves import flatten_updates, map_parameters
from .._trees.states import check_state
from .._types import Leaf, Model, Params, PerLeaf, State, Updates
from ..numerics._numerics import has_nan
from .clip import by_parts


@equation(elementwise=True)
def keep_nonnegative(g, p):
    return by_parts(lambda g, p: jnp.maximum(g, -p), g, p)


class KeepParamsNonnegative(AbstractStateless):
    r"""Stops parameters at zero when they would become negative: $u = \max(g, -p)$.

    Then $p + u \ge 0$: with `step` always, and with `update` except for rounding, if
    gradients have fewer digits than the parameters. Parameters that start negative move
    to zero. Put it last in a chain, after the learning rate. For complex parameters,
    both the real and the imaginary part are kept non-negative. For other sets, use
    [`eqopt.Project`][].

    **Raises:**

    A `ValueError` in `update` if `params` is `None`.
    """

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(keep_nonnegative)


class ZeroNaNsState(eqx.Module):
    """`found_nan`: a tree like the parameters, of 0-d bool arrays that say whether the
    last update of the leaf had a NaN.
    """

    found_nan: PerLeaf


@equation
def zero_nans(g: Leaf, found_nan: Bool[Array, ""]) -> tuple[Leaf, Bool[Array, ""]]:
    return jnp.where(jnp.isnan(g), 0, g), has_nan(g)


class ZeroNaNs(AbstractLeafwise):
    """Replaces each NaN in the updates by zero, and records which leaves had one.

    Infinities stay unchanged. To skip the whole step instead, use
    [`eqopt.ApplyIfFinite`][].
    """

    def init(self, params: Params) -> ZeroNaNsState:
        return ZeroNaNsState(map_parameters(lambda _: jnp.zeros((), bool), params))

    def leafwise(
        self, state: ZeroNaNsState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(zero_nans, state)


@equation(elementwise=True)
def overwrite(g, p):
    return g - p


class Overwrite(AbstractTransformation):
    r"""Replaces parameters by their gradients: $u = g - p$.

    Some layers return the next value of a parameter in place of its gradient, with a
    custom derivative. In training with float8, these are the scales of arrays and the
    histories of their largest values, such as the collection
    `_overwrite_with_gradient` of Flax.

    !!! example

        ```python
        is_meta = eqopt.groups.path("_scale$|_amax_history$")
        labels = {"meta": is_meta, "rest": eqopt.groups.everything}
        rest = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))
        opt = eqopt.Partition(
            {"meta": eqopt.Overwrite(), "rest": rest}, eqopt.groups.label(labels)
        )
        ```

    Only this group may change: keep clipping, weight decay and averages inside the
    other groups, as in the example. Accumulate gradients there, too: the mean of several
    new values is no new value.

    With `step`, the parameter becomes the gradient, rounded to its dtype. With `update`,
    it is rounded once more when the update is added.

    **Raises:**

    In `update` and `step`, a `ValueError` if `params` is `None`. A `ValueError` or
    `TypeError` with the key path if gradients and parameters do not fit.
    """

    def init(self, params: Params) -> None:
        return None

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_real(updates, required_params(params), "params")
        return leafwise(overwrite, updates, reads={"p": params}), state

    def step(
        self, grads: Updates, state: State, params: Model, **extra: Any
    ) -> tuple[Model, State]:
        check_state(self, state)
        check_real(grads, required_params(params), "params")
        check_shapes(grads, params, "params")
        leaves, treedef = flatten_updates(grads)
        pairs = zip(leaves, treedef.flatten_up_to(params), strict=True)
        # Copies: the gradients may be donated.
        new = (p if g is None else jnp.array(g, p.dtype) for g, p in pairs)
        return treedef.unflatten(new), state
