"""The tiles in which a TPU keeps a matrix, and the blocks of a leaf in them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Shaped


# A tile has 8 rows and 128 columns. It is computed as a whole.
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
