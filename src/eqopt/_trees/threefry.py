"""The random numbers of `jax.random`, computed where they are used.

On a CPU, JAX draws them in a separate loop and stores the results: noise of the size of
a model takes four times the memory of the model. Here, they are plain arithmetic, which
XLA fuses with the code that reads them. This gives the same bits in a fifth of the
time, without extra memory.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Inexact, UInt32


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def normal(key: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Inexact[Array, "..."]:
    """`jax.random.normal`, bit for bit."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real = jnp.finfo(dtype).dtype
        x, y = (normal(k, shape, real) for k in jr.split(key))
        return lax.complex(x, y) / jnp.sqrt(jnp.asarray(2, dtype))
    if not _is_ours(key, shape, dtype):
        return jr.normal(key, shape, dtype)
    # The 23 high bits are the fraction of a number in [1, 2), which is moved to (-1, 1).
    one, bits = jnp.uint32(0x3F800000), _bits(jr.key_data(key), shape)
    uniform = lax.bitcast_convert_type(bits >> 9 | one, jnp.float32) - 1
    low = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    uniform = jnp.maximum(low, uniform * (1 - low) + low)
    return jnp.sqrt(jnp.float32(2)) * lax.erf_inv(uniform)


def rademacher(
    key: Any, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "..."]:
    """`jax.random.rademacher`, bit for bit: signs."""
    # JAX compares numbers of the default dtype with 1/2.
    if not _is_ours(key, shape, jnp.result_type(float)):
        return jr.rademacher(key, shape, dtype)
    return jnp.where(_bits(jr.key_data(key), shape) >> 31 == 0, 1, -1).astype(dtype)


def random_bits(key: Any, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """`jax.random.bits` of 32 bits, bit for bit."""
    if not _is_ours(key, shape, jnp.float32):
        return jr.bits(key, shape, jnp.uint32)
    # On a GPU, a barrier gives each leaf its own indices. Otherwise, leaves of one shape
    # share them, and XLA rounds several leaves in another kernel, which reads gradients
    # and states again. (Without the key, XLA would merge the barriers.)
    first_and_key = jnp.uint32(0), jr.key_data(key)
    start, data = lax.platform_dependent(
        first_and_key, cuda=lax.optimization_barrier, default=lambda x: x
    )
    return _bits(data, shape, start)


def _is_ours(key: Any, shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether JAX would also count the elements in 32 bits and encrypt each of them."""
    return (
        dtype == jnp.float32
        and str(jr.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # type: ignore  # added at run time
        and math.prod(shape) < 2**32
    )


def _bits(
    data: UInt32[Array, "2"], shape: tuple[int, ...], start: UInt32[Array, ""] | int = 0
) -> UInt32[Array, "..."]:
    """The random bits of a key's `data`. `start` is the index of the first element: 0."""
    index = jnp.full(shape, start, jnp.uint32)
    for axis in range(len(shape)):
        index = index * jnp.uint32(shape[axis])
        index += lax.broadcasted_iota(jnp.uint32, shape, axis)
    x, y = _encrypt(data, jnp.zeros_like(index), index)
    return x ^ y


def _encrypt(
    key: UInt32[Array, "2"], x: UInt32[Array, "..."], y: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011, "Parallel random numbers")."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = (y << r | y >> (32 - r)) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y
