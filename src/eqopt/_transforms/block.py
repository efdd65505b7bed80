"""Scaling and clipping by the size of a block: a leaf, such as the weight of a layer."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .._checks import check_range
from .._equations import equation
from .._pipeline import Leafwise
from .._transformation import AbstractStateless
from .._types import Hyperparameter, Params
from ..numerics import abs_sq, safe_sqrt


def block_norm(x: Inexact[Array, "*leaf"]) -> Float[Array, ""]:
    """The norm of one leaf as a vector; its gradient is 0 at 0."""
    return safe_sqrt(jnp.sum(abs_sq(x)))


def block_rms(x: Inexact[Array, "*leaf"]) -> Float[Array, ""]:
    """The root of the mean square of one leaf; its gradient is 0 at 0."""
    return safe_sqrt(jnp.mean(abs_sq(x)))


@equation
def scale_by_param_norm(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    min_scale: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    return jnp.maximum(block_norm(p), min_scale) * g


@equation
def scale_by_param_rms(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    min_scale: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    return jnp.maximum(block_rms(p), min_scale) * g


@equation
def clip_rms(
    g: Inexact[Array, "*leaf"], *, threshold: Float[Array, ""]
) -> Inexact[Array, "*leaf"]:
    return g / jnp.maximum(1, block_rms(g) / threshold)


class ScaleByParamBlockNorm(AbstractStateless):
    r"""Multiplies the update of each leaf by the norm of its parameters.

    $$u = \max(\|p\|_2, s)\, g$$

    **Arguments:**

    - `min_scale`: $s \ge 0$, which lets parameters start at zero.

    **Raises:**

    A `ValueError` if `min_scale` is negative, and in `update` if `params` is `None`.
    """

    min_scale: Hyperparameter = 1e-3

    def __check_init__(self):
        check_range(self, "min_scale", 0)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_param_norm)


class ScaleByParamBlockRMS(AbstractStateless):
    r"""Multiplies the update of each leaf by the root mean square of its parameters.

    $$u = \max(\operatorname{RMS}(p), s)\, g, \qquad
      \operatorname{RMS}(p)^2 = \operatorname{mean}_i |p_i|^2$$

    Unlike the norm, the root mean square does not grow with the number of parameters.

    **Arguments:**

    - `min_scale`: $s \ge 0$, which lets parameters start at zero.

    **Raises:**

    A `ValueError` if `min_scale` is negative, and in `update` if `params` is `None`.
    """

    min_scale: Hyperparameter = 1e-3

    def __check_init__(self):
        check_range(self, "min_scale", 0)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_param_rms)


class ClipByBlockRMS(AbstractStateless):
    r"""Scales the update of a leaf down if its root mean square is too large.

    $$u = g \Big/ \max\!\left(1, \frac{\operatorname{RMS}(g)}{d}\right), \qquad
      \operatorname{RMS}(g)^2 = \operatorname{mean}_i |g_i|^2$$

    Each leaf is clipped by itself; [`eqopt.ClipByGlobalNorm`][] clips all of them
    together. A NaN or an infinity in a leaf makes all of its updates NaN.

    **Arguments:**

    - `threshold`: $d > 0$.

    **Raises:**

    A `ValueError` if `threshold` is not positive.
    """

    threshold: Hyperparameter

    def __check_init__(self):
        check_range(self, "threshold", 0, includes_low=False)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(clip_rms)
