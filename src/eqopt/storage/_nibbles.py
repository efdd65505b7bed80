"""Codes of 4 bits: two neighbours share a byte, the first one in its low 4 bits."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt4, UInt8


Bytes: TypeAlias = UInt8[Array, "... bytes"]


def packed(codes: UInt8[Array, "... n"] | UInt4[Array, "... n"]) -> Bytes:
    """The codes in bytes. If their number is odd, a zero is added."""
    if codes.shape[-1] % 2:
        codes = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return lax.platform_dependent(pairs, cuda=_joined_on_gpu, default=_joined)


def unpacked(codes: Bytes) -> UInt8[Array, "... n"]:
    """The inverse of `packed`. If the number of codes was odd, it returns one more."""
    pairs = lax.platform_dependent(codes, cuda=_separated_on_gpu, default=_separated)
    return pairs.reshape(*codes.shape[:-1], -1)


# This is how a GPU keeps `uint4` in memory, so the conversion moves nothing. Codes then
# have the shape of the parameters, and one kernel stores both.


def _joined_on_gpu(pairs):
    return lax.bitcast_convert_type(pairs.astype(jnp.uint4), jnp.uint8)


def _separated_on_gpu(codes):
    return lax.bitcast_convert_type(codes, jnp.uint4).astype(jnp.uint8)


def _joined(pairs):
    # XLA for a CPU computes each code once. In `first | second << 4`, it would compute
    # both of them twice.
    pairs = pairs.astype(jnp.uint8) << _shifts(pairs.ndim)
    return jnp.sum(pairs, axis=-1, dtype=jnp.uint8)


def _separated(codes):
    return codes[..., None] >> _shifts(codes.ndim + 1) & 15


def _shifts(ndim):
    return np.array([0, 4], np.uint8).reshape(*[1] * (ndim - 1), 2)


# On a TPU, neighbours of a row are in one vector, in which the matrix unit can move them.
# Without a product, XLA copies whole arrays to another order and back. Without the
# barriers, it copies gradients and parameters to the order of the products.


def packed_on_tpu(codes: UInt4[Array, "... n"]) -> Bytes:
    """The same as `packed`, for a multiple of 128 codes."""
    first_and_second = np.tile([[1], [16]], (64, 1))
    both = _products(lax.optimization_barrier(codes), _PAIRS.T * first_and_second)
    return both.astype(jnp.uint8).reshape(*codes.shape[:-1], -1)


def unpacked_on_tpu(codes: Bytes) -> UInt4[Array, "... n"]:
    """The same as `unpacked`, for a multiple of 64 bytes."""
    twice = _products(codes, _PAIRS)
    is_second = lax.broadcasted_iota(jnp.int32, twice.shape, twice.ndim - 1) % 2 == 1
    each = jnp.where(is_second, twice >> 4, twice & 15).astype(jnp.uint4)
    return lax.optimization_barrier(each.reshape(*codes.shape[:-1], -1))


# Row i has ones in the columns 2 i and 2 i + 1. A product copies byte i to both; with the
# transpose, it adds two neighbours.
_PAIRS = np.repeat(np.eye(64), 2, axis=1)


def _products(x, matrix):
    """Parts of each row of `x`, times `matrix`.

    All numbers are integers below 256, which bfloat16 represents exactly.
    """
    parts = x.reshape(*x.shape[:-1], -1, len(matrix)).astype(jnp.bfloat16)
    matrix = jnp.asarray(matrix, jnp.bfloat16)
    y = jnp.matmul(parts, matrix, preferred_element_type=jnp.float32)
    return y.astype(jnp.int32)
