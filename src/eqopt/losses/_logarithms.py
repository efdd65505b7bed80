"""Log-probabilities, where minus infinity means zero."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def weighted(
    weights: Float[Array, "*shape"], logs: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    r"""$w \log p$, which is 0 where $w = p = 0$, with finite derivatives."""
    is_nothing = (weights == 0) & jnp.isinf(logs)
    return weights * jnp.where(is_nothing, 0, logs)


def log_normalizer(
    x: Float[Array, "*shape"], axes: tuple[int, ...], mask: Bool[Array, "*shape"]
) -> Float[Array, "..."]:
    r"""$\log \sum_i e^{x_i}$ over unmasked elements, with `keepdims`.

    It is 0 if all elements are masked. Elements of minus infinity are allowed.
    """
    x = jnp.where(mask, x, -jnp.inf)
    top = lax.stop_gradient(jnp.max(x, axes, keepdims=True, initial=-jnp.inf))
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.sum(jnp.exp(x - top), axes, keepdims=True)
    return top + jnp.log(jnp.where(total == 0, 1, total))


def log_softmax(
    x: Float[Array, "*shape"], axes: tuple[int, ...], mask: Bool[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The log-softmax of unmasked elements, and 0 for the rest."""
    return jnp.where(mask, x, -jnp.inf) - log_normalizer(x, axes, mask)


def logaddexp(
    a: Float[Array, "*shape"], b: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`jnp.logaddexp` for finite numbers, with half as many operations."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))
