"""Clipping factors for gradients with given norms."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def clip_factors(
    norms: Float[Array, " examples"], limit: Any
) -> Float[Array, " examples"]:
    """The factors that reduce the given norms to at most `limit`.

    A zero gradient is not clipped. For a NaN norm, the factor is zero: NaN values stay
    NaN, and finite values add nothing. A traced limit may be wrong without an error: a
    negative one counts as zero, and for a NaN limit, the factors are NaN.
    """
    limit = jnp.asarray(limit, norms.dtype)
    limit = jnp.where(limit < 0, 0, limit)
    exceeds = (norms > limit) | jnp.isnan(limit)
    factors = jnp.where(exceeds, limit / jnp.where(exceeds, norms, 1), 1)
    return jnp.where(jnp.isnan(norms) & (limit < jnp.inf), 0, factors)
