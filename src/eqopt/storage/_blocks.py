"""Blocks: how a leaf is divided into pieces that share a scale."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Shaped

from .._jax_internals import is_traced
from ..numerics._numerics import max_or_nan


# A TPU keeps a matrix in tiles of 8 rows and 128 columns, which it computes as a whole.
ROWS, COLUMNS = 8, 128


class Tiles(eqx.Module):
    """A leaf as (..., rows of tiles, columns of tiles, 8, 128): its order in memory.

    XLA for a TPU merges the axes (columns of a leaf) into (blocks, elements) by a copy of
    the leaf, because tiles then contain other elements. Here, the axes of tiles stay, and
    a block covers one or two tiles, which are in the same row.
    """

    leaf: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def are_whole(self, devices: int) -> bool:
        """Whether tiles and blocks divide the leaf, also if devices share its rows.

        Blocks consist of whole tiles, so that devices that can share the blocks of a row
        can also share its tiles.
        """
        *_, rows, columns = self.leaf
        return not any(
            (rows % (devices * ROWS), columns % self.size, self.size % COLUMNS)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        *first, rows, columns = self.leaf
        return (*first, rows // ROWS, columns // COLUMNS, ROWS, COLUMNS)

    @property
    def rows(self) -> tuple[int, ...]:
        return self.shape[:-1]

    @property
    def length(self) -> int:
        return COLUMNS

    @property
    def shape_of_scales(self) -> tuple[int, ...]:
        *rows, columns = self.leaf
        return (*rows, columns // self.size)

    def arranged(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The elements of `x`, which are in their natural order, in this shape."""
        *first, tall, wide, rows, columns = self.shape
        return jnp.moveaxis(x.reshape(*first, tall, rows, wide, columns), -3, -2)

    def natural(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The inverse of `arranged`, up to the shape."""
        return jnp.moveaxis(x, -3, -2)

    def cut(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        return x

    def largest(self, x: Shaped[Array, "..."], most: float) -> Shaped[Array, "..."]:
        """The largest element of each block of nonnegative `x`, at most `most`."""
        *first, tall, _, rows, _ = self.shape
        # Only a TPU does this, and its `max` keeps NaN.
        of_tiles = jnp.max(jnp.minimum(x, most), axis=-1)
        blocks = of_tiles.reshape(*first, tall, -1, self.size // COLUMNS, rows)
        largest = jnp.max(blocks, axis=-2)
        return jnp.swapaxes(largest, -1, -2).reshape(self.shape_of_scales)

    def spread(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The values of `x` for each block, repeated for each element."""
        *first, tall, _, rows, _ = self.shape
        x = jnp.swapaxes(x.reshape(*first, tall, rows, -1), -1, -2)
        return jnp.repeat(x, self.size // COLUMNS, axis=-2)[..., None]


class Blocks(eqx.Module):
    """A leaf as rows, each divided into blocks of `size` elements.

    A row has the elements along the last axes of the leaf, from `axis` on. Blocks
    depend on the shape alone, not on devices: otherwise, `init` inside `jit`, where
    devices are unknown, would return another state than outside, and a checkpoint could
    only be loaded on the same mesh.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    size: int = eqx.field(static=True)
    axis: int = eqx.field(static=True)

    @property
    def layout_name(self) -> str:
        """The values that determine the position of each element, for checkpoints."""
        return f"Blocks of {self.size} in rows of {self.length}"

    @property
    def of_equal_blocks(self) -> "Blocks | None":
        """The same blocks of an array with an axis of blocks; `None` with a tail."""
        if self._tail:
            return None
        shape = (*self.rows, self.length // self.size, self.size)
        return Blocks(shape, self.dtype, self.size, len(shape) - 1)

    def in_tiles(self, devices: int) -> Tiles | None:
        """The same blocks in the tiles of a TPU; `None` if they do not fit.

        `devices` may share the rows of the leaf.
        """
        if self.axis < max(1, len(self.shape) - 1):
            return None
        tiles = Tiles(self.shape, self.dtype, self.size)
        return tiles if tiles.are_whole(devices) else None

    @property
    def rows(self) -> tuple[int, ...]:
        return self.shape[: self.axis]

    @property
    def length(self) -> int:
        """The elements of a row."""
        return math.prod(self.shape[self.axis :])

    @property
    def shape_of_scales(self) -> tuple[int, ...]:
        return (*self.rows, math.ceil(self.length / self.size))

    @property
    def _tail(self) -> int:
        """The elements of the last block, if it is shorter than the others."""
        return self.length % self.size

    def arranged(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The elements of `x`, which are in their natural order, in this shape."""
        return x.reshape(self.shape)

    def natural(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The inverse of `arranged`, up to the shape."""
        return x

    def cut(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """`x` as (*rows, blocks, elements), or as (*rows, elements) with a tail."""
        blocks = () if self._tail else (self.length // self.size,)
        return x.reshape(*self.rows, *blocks, -1)

    def largest(self, x: Shaped[Array, "..."], most: float) -> Shaped[Array, "..."]:
        """The largest element of each block of `x`, a nonnegative result of `cut`.

        It is at most `most`, and NaN if the block has a NaN.
        """
        if self._tail:
            # XLA creates no array for it, because it is only read here.
            pad = self.size - self._tail
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
            x = x.reshape(*x.shape[:-1], -1, self.size)
        return max_or_nan(x, axis=-1, most=most)

    def spread(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The values of `x` for each block, repeated for each element."""
        x = x[..., None]
        if not self._tail:
            return x
        x = jnp.broadcast_to(x, (*x.shape[:-1], self.size))
        return x.reshape(*x.shape[:-2], -1)[..., : self.length]

    def placed(self, x: Shaped[Array, "..."], like: Any) -> Shaped[Array, "..."]:
        """`x` on the devices of the leaf `like`, as far as they are known."""
        if is_traced(like) or not any(_spec(like)):
            return x
        return jax.device_put(x, NamedSharding(like.sharding.mesh, self.spec(x, like)))

    def spec(self, x: Any, like: Any) -> P:
        """The mesh axes that divide `x`, the codes or the scales of the leaf `like`.

        Rows are divided if the shards of `like` are parts of rows and `x` is divisible.
        """
        spec = _spec(like)
        if x.shape != self.shape and any(spec):
            shares = _sharding(like).shard_shape(self.shape)
            shards = self.shape[self.axis] // shares[self.axis]
            is_divided = not any(spec[self.axis + 1 :]) and x.shape[-1] % shards == 0
            spec = spec[: self.axis + is_divided]
        last = max((i for i, names in enumerate(spec) if names), default=-1)
        return P(*spec[: last + 1])


def blocks_of(x: Shaped[Array, "..."], size: int) -> Blocks:
    """How to divide `x`, an array of at least one element.

    A row has as few axes as possible, and at least half of `size` elements.
    """
    lengths = [math.prod(x.shape[axis:]) for axis in range(x.ndim)] or [1]
    axis = max((i for i, n in enumerate(lengths) if 2 * n >= size), default=0)
    return Blocks(x.shape, jnp.dtype(x.dtype), _size(lengths[axis], size), axis)


def _size(length: int, most: int) -> int:
    """The elements of a block in a row of this length.

    If possible, all blocks of a row are equal and have more than half of `most`, and
    their number is divisible by a large power of two. Then rows can be divided over
    2, 4, 8, ... devices without a block on two of them.
    """
    if length <= most:
        return length
    equal = [n for n in range(most, most // 2, -1) if length % n == 0]
    power_of_two = lambda count: count & -count
    return max(equal, key=lambda n: power_of_two(length // n), default=most)


def _spec(x: Any) -> tuple:
    """The mesh axes by which each axis of `x` is sharded, as far as known."""
    sharding = _sharding(x)
    if not isinstance(sharding, NamedSharding):
        return ()
    return (*sharding.spec, *[None] * (x.ndim - len(sharding.spec)))


def _sharding(x: Any) -> Any:
    return jax.typeof(x).sharding if is_traced(x) else x.sharding
