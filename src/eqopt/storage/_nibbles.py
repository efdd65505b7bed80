"""Codes of 4 bits: two neighbours share a byte, the first one in its lower half."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt4, UInt8


Bytes: TypeAlias = UInt8[Array, "... bytes"]


def packed(codes: UInt8[Array, "... n"] | UInt4[Array, "... n"]) -> Bytes:
    """The codes in bytes. If their number is odd, another zero is the last one."""
    if codes.shape[-1] % 2:
        codes = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return lax.platform_dependent(pairs, cuda=_as_bytes, default=_joined)


def unpacked(codes: Bytes) -> UInt8[Array, "... n"]:
    """The inverse of `packed`; it may return one code more."""
    pairs = lax.platform_dependent(codes, cuda=_as_pairs, default=_shifted)
    return pairs.reshape(*codes.shape[:-1], -1)


# On a GPU, arrays of `uint4` are in memory in this way. Then codes have the same shape as
# parameters, and one kernel can store both.


def _as_bytes(pairs):
    return lax.bitcast_convert_type(pairs.astype(jnp.uint4), jnp.uint8)


def _as_pairs(codes):
    return lax.bitcast_convert_type(codes, jnp.uint4).astype(jnp.uint8)


def _joined(pairs):
    # XLA for a CPU computes each code once. In `first | second << 4`, it would compute
    # both of them twice.
    pairs = pairs.astype(jnp.uint8) << _shifts(pairs.ndim)
    return jnp.sum(pairs, axis=-1, dtype=jnp.uint8)


def _shifted(codes):
    return codes[..., None] >> _shifts(codes.ndim + 1) & 15


def _shifts(ndim):
    return np.array([0, 4], np.uint8).reshape(*[1] * (ndim - 1), 2)


# On a TPU, neighbours of a row are in one vector, in which the matrix unit can move them.
# Without a product, XLA copies whole arrays to another order and back.


def packed_on_tpu(codes: UInt4[Array, "... n"]) -> Bytes:
    """The same as `packed`, for a multiple of 128 codes."""
    values = np.tile([[1], [16]], (64, 1))
    both = _products(lax.optimization_barrier(codes), _PAIRS.T * values)
    return both.astype(jnp.uint8).reshape(*codes.shape[:-1], -1)


def unpacked_on_tpu(codes: Bytes) -> UInt4[Array, "... n"]:
    """The same as `unpacked`, for a multiple of 64 bytes."""
    twice = _products(codes, _PAIRS)
    is_second = lax.broadcasted_iota(jnp.int32, twice.shape, twice.ndim - 1) % 2 == 1
    each = jnp.where(is_second, twice >> 4, twice & 15).astype(jnp.uint4)
    return lax.optimization_barrier(each.reshape(*codes.shape[:-1], -1))


_PAIRS = np.repeat(np.eye(64), 2, axis=1)


def _products(x, matrix):
    """Parts of each row, times `matrix`. All are below 256, so bfloat16 is exact."""
    parts = x.reshape(*x.shape[:-1], -1, len(matrix)).astype(jnp.bfloat16)
    matrix = jnp.asarray(matrix, jnp.bfloat16)
    y = jnp.matmul(parts, matrix, preferred_element_type=jnp.float32)
    return y.astype(jnp.int32)
