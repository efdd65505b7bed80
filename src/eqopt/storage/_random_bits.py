"""The bits of `jax.random.bits`, so that XLA for a GPU rounds each leaf on its own.

Leaves of one shape share the indices that JAX encrypts. XLA for a GPU then rounds several
leaves in another kernel, which reads gradients and states again: compiled for an H100, a
step of AdamW with stochastic rounding moves 7.2 sizes of the parameters. Here, each leaf
has its own indices, and the step moves 5.0, with the same bits.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, UInt32


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def random_bits(key: Any, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Draws 32 random bits for each element, as `jax.random.bits` does."""
    # Whether JAX would also count the elements in 32 bits and encrypt each of them.
    is_alike = (
        str(jr.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # type: ignore  # added at run time
        and math.prod(shape) < 2**32
    )
    if not is_alike:
        return jr.bits(key, shape, jnp.uint32)
    # Without the key, XLA would merge the barriers of all leaves.
    index, data = lax.platform_dependent(
        (jnp.uint32(0), jr.key_data(key)),
        cuda=lax.optimization_barrier,
        default=lambda x: x,
    )
    index = jnp.full(shape, index, jnp.uint32)
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
