"""NAdam's momentum that grows over the first steps."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._types import Scalar


# The number of terms after which the rest of the series below vanishes in float64.
_TERMS = 54


@jax.jit
def growing_corrections(b1, momentum_decay, count) -> dict[str, Array]:
    r"""The bias corrections of `ScaleByAdam` if $\beta_1$ grows like $b_t$."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        b1, t = jnp.asarray(b1, float), jnp.asarray(count, float)
        rate = jnp.asarray(momentum_decay, float) * math.log(0.96)
        growth = lambda t: 1 - 0.5 * jnp.exp(t * rate)
        ahead = 1 - _product(b1, rate, t + 1)
        now = 1 - _product(b1, rate, t)
        return {
            "mu_correction": ahead / growth(t + 1),
            "g_correction": (1 - b1) * now / (1 - b1 * growth(t)),
        }


def _product(b1: Scalar, rate: Scalar, t: Scalar) -> Scalar:
    r"""$\prod_{i \le t} b_i$, without a state.

    The logarithm of $1 - q^i / 2$ is a series in $q^i / 2$, where $q$ is $0.96^\psi$.
    Each of its terms, summed over all steps, is a geometric series.
    """
    k = jnp.arange(1, _TERMS + 1).astype(rate.dtype)
    is_constant = rate == 0
    r = k * jnp.where(is_constant, -1.0, rate)
    sums = jnp.exp(r) * jnp.expm1(t * r) / jnp.expm1(r)
    sums = jnp.where(is_constant, t, sums)
    return b1**t * jnp.exp(-jnp.sum(0.5**k / k * sums))
