"""Excludes invalid values: negative parameters and NaNs."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._core import AbstractLeafwise, AbstractStateless, Leafwise, equation
from ..._trees.leaves import map_parameters
from ..._types import Leaf, Params, PerLeaf
from ...numerics._numerics import has_nan
from ..clip import by_parts


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
