"""Log-probabilities, where minus infinity means zero, and sums without cancellation."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def weighted(
    weights: Float[Array, "*shape"], logs: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    r"""$w \log p$, which is 0 where $w = p = 0$, with finite derivatives."""
    is_nothing = (weights == 0) & jnp.isinf(logs)
    return weights * jnp.where(is_nothing, 0, logs)


def log_sum(
    x: Float[Array, "*shape"], axes: tuple[int, ...], mask: Bool[Array, "*shape"]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""$\log \sum_i e^{x_i}$ over unmasked elements, with `keepdims`, in two summands.

    The first one is a constant for derivatives, and may be large: add it to something
    of its size first. Elements of minus infinity are allowed. If there are no others,
    the sum is the lowest finite number.
    """
    x = jnp.where(mask, x, -jnp.inf)
    top = _finite_maximum(x, axes)
    total = jnp.sum(jnp.exp(x - top), axes, keepdims=True)
    log = jnp.log(jnp.where(total == 0, 1, total))
    return top, jnp.where(total == 0, jnp.finfo(x.dtype).min, log)


def log_softmax(
    x: Float[Array, "*shape"], axes: tuple[int, ...], mask: Bool[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The log-softmax of unmasked elements, and minus infinity for the rest.

    The logarithm of a probability near 1 has all its digits. If all elements are masked
    or minus infinity, so is the result.
    """
    return _log_softmax(jnp.where(mask, x, -jnp.inf), axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_softmax(
    x: Float[Array, "*shape"], axes: tuple[int, ...]
) -> Float[Array, "*shape"]:
    top = jnp.max(x, axes, keepdims=True, initial=-jnp.inf)
    top = jnp.where(top > -jnp.inf, top, 0)
    # Zero also if the largest is infinite: then all others are impossible.
    gaps = jnp.where(x == top, 0, x - top)
    # The largest term of the sum is 1, and `log1p` adds it to the others. If several
    # are the largest, all but one of them count as others.
    ones = jnp.sum((x == top).astype(x.dtype), axes, keepdims=True)
    others = jnp.sum(jnp.where(x == top, 0, jnp.exp(gaps)), axes, keepdims=True)
    others = others + (ones - 1)
    return gaps - jnp.log1p(jnp.where(others == -1, 0, others))


@_log_softmax.defjvp
def _log_softmax_jvp(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    log_p = _log_softmax(*primals, axes)
    [dx] = tangents
    return log_p, dx - jnp.sum(jnp.exp(log_p) * dx, axes, keepdims=True)


def logaddexp(
    a: Float[Array, "*shape"], b: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`jnp.logaddexp` for finite numbers, with half as many operations."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


def excess(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$x + e^{-x} - 1$, which is never negative, with all digits if $x$ is small."""
    is_small = jnp.abs(x) < 0.5
    near = small_excess(jnp.where(is_small, x, 0))
    return jnp.where(is_small, near, x + jnp.expm1(-x))


def small_excess(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`excess` of numbers below 0.5 in size, from the series."""
    # x^2 / 2 (1 - x / 3 (1 - x / 4 (...))), with the terms that float32 or float64 has.
    series = jnp.ones_like(x)
    for k in range(15 if x.dtype.itemsize > 4 else 9, 2, -1):
        series = 1 - x * (1 / k) * series
    return x * x / 2 * series


@jax.custom_jvp
def with_derivatives_of(
    smooth: Float[Array, "*shape"], value: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`value`, with the derivatives of `smooth`, another formula for the same number.

    One formula may have simple derivatives, and the other no cancellation.
    """
    return value


@with_derivatives_of.defjvp
def _with_derivatives_of_jvp(primals: Any, tangents: Any) -> Any:
    return with_derivatives_of(*primals), tangents[0]


def _finite_maximum(
    x: Float[Array, "*shape"], axes: tuple[int, ...]
) -> Float[Array, "..."]:
    """The maximum, as a constant with `keepdims`, or 0 if it is not finite."""
    top = lax.stop_gradient(jnp.max(x, axes, keepdims=True, initial=-jnp.inf))
    return jnp.where(jnp.isfinite(top), top, 0)
