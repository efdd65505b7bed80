"""Blocks: how a leaf is divided into pieces that share a scale."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Shaped

from .._jax_internals import is_traced
from .._typecheck import no_type_check


class Blocks(eqx.Module):
    """A leaf as blocks of at most `size` elements, none of which spans two shards.

    An array that is not sharded is one row, from its first element to its last. A
    sharded array is divided into rows along the axes before the sharded one, and into
    shards along the sharded axis.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    rows: tuple[int, ...] = eqx.field(static=True)
    shards: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    spec: tuple = eqx.field(static=True)  # the mesh axes by which it is sharded

    @property
    def layout_name(self) -> str:
        """The values that determine the position of each element, for checkpoints."""
        if self.length % self.size == 0:
            return f"Blocks of {self.size}"
        return f"Blocks of {self.size} in {self.length}"

    @property
    def length(self) -> int:
        """The elements of a row in one shard."""
        return math.prod(self.shape) // (math.prod(self.rows) * self.shards)

    @no_type_check  # called once per leaf, like the others
    def cut(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """`x` as (rows, shards, blocks, elements), without blocks if one is shorter."""
        size = min(self.size, self.length)
        in_blocks = (self.length,) if self.length % size else (-1, size)
        return x.reshape(*self.rows, self.shards, *in_blocks)

    @no_type_check
    def largest(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The largest element of each block of `x`, a nonnegative result of `cut`."""
        if pad := -self.length % min(self.size, self.length):
            # XLA creates no array for it, because it is only read here.
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
            x = x.reshape(*x.shape[:-1], -1, self.size)
        return jnp.max(x, axis=-1)

    @no_type_check
    def spread(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The values of `x` for each block, repeated for each element."""
        x = x[..., None]
        if self.length % min(self.size, self.length) == 0:
            return x
        x = jnp.broadcast_to(x, (*x.shape[:-1], self.size))
        return x.reshape(*x.shape[:-2], -1)[..., : self.length]

    @no_type_check
    def flat(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The contents of each shard, as stored."""
        return x.reshape(*self.rows, -1)

    @no_type_check
    def unflat(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The inverse of `flat`."""
        return x.reshape(*self.rows, self.shards, -1)

    def placed(self, x: Shaped[Array, "..."], like: Any) -> Shaped[Array, "..."]:
        """`x`, a result of `flat`, on the devices of the leaf `like`."""
        if is_traced(like) or not any(self.spec):
            return x
        return jax.device_put(x, NamedSharding(like.sharding.mesh, self.flat_spec))

    @property
    def flat_spec(self) -> P:
        """The mesh axes by which the stored arrays are sharded."""
        return P(*self.spec[: len(self.rows) + 1])


def blocks_of(x: Shaped[Array, "..."], size: int) -> Blocks:
    """How to divide `x`, an array of at least one element."""
    spec = _spec(x)
    axis = max((i for i, names in enumerate(spec) if names), default=0)
    shards = 1
    if any(spec):
        shards = x.shape[axis] // _sharding(x).shard_shape(x.shape)[axis]
    rows = x.shape[:axis]
    return Blocks(x.shape, jnp.dtype(x.dtype), rows, shards, size, spec)


def _spec(x: Any) -> tuple:
    """The mesh axes by which each axis of `x` is sharded, as far as known."""
    sharding = _sharding(x)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return ()
    return (*sharding.spec, *[None] * (x.ndim - len(sharding.spec)))


def _sharding(x: Any) -> Any:
    return jax.typeof(x).sharding if is_traced(x) else x.sharding
