"""Matrix products, and bounds on their rounding errors."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ...numerics._numerics import abs_sq, wide_dtype


class Square(NamedTuple):
    """The squared norm of one example's gradient, and a bound on its rounding error.

    **Attributes:**

    - `value`: the square.
    - `error`: an upper bound on how much smaller `value` is than the exact square.
    - `scale`: the norm without cancellation between rows.
    - `spread`: an upper bound on the norm of the rounding error that the example adds
        to `weighted_sum`, in addition to its gradient.
    """

    value: Float[Array, ""]
    error: Float[Array, ""]
    scale: Float[Array, ""]
    spread: Float[Array, ""]


# A norm counts as at least this fraction of the norm without cancellation between rows,
# so that the rows are not large in the sum over all examples, which rounds according to
# its own size.
LEAST = 2.0**-8


def products(x: Array, y: Array) -> tuple[Array, Array]:
    """The scalar products of the rows in each group, and bounds on rounding errors."""
    result, terms = _products(x, jnp.conj(y))
    dtype = result.real.dtype
    least = x.shape[2] * tiny(dtype)
    s, t = (jnp.sqrt(jnp.sum(abs_sq(lax.stop_gradient(z)), 2) + least) for z in (x, y))
    return result, of_dot(terms, dtype) * s[:, :, None] * t[:, None] + least


def _products(x: Array, y: Array) -> tuple[Array, int]:
    """The products, and the number of terms that determines their rounding."""
    parts, length = 1 + jnp.iscomplexobj(x), x.shape[2]
    if x.shape[1] == y.shape[1] == 1:
        return jnp.sum(x * y, 2, keepdims=True), parts * _blocks(length)
    count = max(1, length // _PIECE)
    size, rest = divmod(length, count)

    def piece(start: Any, size: int) -> Array:
        cut = (lax.dynamic_slice_in_dim(z, start, size, 2) for z in (x, y))
        return einsum("gsi,gti->gst", *cut)

    result = piece(0, size + rest)
    if count > 1:
        starts = size * jnp.arange(1, count) + rest
        add = lambda total, start: (total + piece(start, size), None)
        result = lax.scan(add, result, starts)[0]
    return result, parts * (size + rest) + count + 2


# Products of longer rows are added up in pieces, which reduces rounding errors.
_PIECE = 256


# The relative error of a sum of `size` terms in any order, compared with the sum of
# their absolute values, is below this bound. XLA computes a matrix product in one of
# many orders, but adds up the elements of an array in blocks.
def of_dot(size: int, dtype: Any) -> Any:
    return dtype.type(0.6 * float(jnp.finfo(dtype).eps) * size)


def of_sum(size: int, dtype: Any) -> Any:
    return of_dot(_blocks(size), dtype)


def _blocks(size: int) -> int:
    return 2 * math.isqrt(size) + 4


def tiny(dtype: Any) -> Any:
    """A smaller product may underflow to zero."""
    return jnp.finfo(dtype).tiny


def diagonal(x: Float[Array, "groups rows rows"]) -> Float[Array, "groups rows"]:
    return jnp.diagonal(x, axis1=1, axis2=2)


def einsum(subscripts: str, *arrays: Array, **kwargs: Any) -> Array:
    # Accelerators must not round its factors: norms must stay within their bounds.
    dtype = wide_dtype(*(x.dtype for x in arrays))
    arrays = tuple(x.astype(dtype) for x in arrays)
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST, **kwargs)
