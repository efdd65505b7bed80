"""The tiles in which a TPU keeps a matrix, and the blocks of a leaf in them."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped


# A tile has 8 rows and 128 columns. It is computed as a whole.
ROWS, COLUMNS = 8, 128

# A select for each piece of a block in a tile takes time.
_MOST_PIECES = 2


class Tiles(eqx.Module):
    """A leaf as (..., rows of tiles, columns of tiles, 8, 128): its order in memory.

    XLA for a TPU merges the axes (columns of a leaf) into (blocks, elements) by a copy of
    the leaf, because tiles then contain other elements. Here, the axes of tiles stay. A
    block covers tiles, or pieces of them, in a row of tiles.
    """

    leaf: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def are_whole(self, devices: int) -> bool:
        """Whether tiles and blocks divide the leaf, also if devices share its rows."""
        *_, rows, columns = self.leaf
        rests = rows % (devices * ROWS), columns % COLUMNS, columns % self.size
        return not any(rests) and self._pieces <= _MOST_PIECES

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
    def distance(self) -> int:
        return 1

    @property
    def shape_of_scales(self) -> tuple[int, ...]:
        *rows, columns = self.leaf
        return (*rows, columns // self.size)

    @property
    def _piece(self) -> int:
        """The columns of a piece. Pieces divide tiles, and blocks."""
        return math.gcd(self.size, COLUMNS)

    @property
    def _pieces(self) -> int:
        """In a tile."""
        return COLUMNS // self._piece

    def arranged(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The elements of `x`, which are in their natural order, in this shape."""
        *first, tall, wide, rows, columns = self.shape
        return jnp.moveaxis(x.reshape(*first, tall, rows, wide, columns), -3, -2)

    def natural(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The inverse of `arranged`, up to the shape."""
        return jnp.moveaxis(x, -3, -2)

    def cut(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        return x

    def largest(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The largest element of each block of `x`, which is nonnegative."""
        *first, tall, _, rows, _ = self.shape
        number = self._number_of_piece()
        parts = [jnp.where(number == i, x, 0) for i in range(self._pieces)]
        parts = parts if self._pieces > 1 else [x]
        pieces = jnp.stack([jnp.max(part, axis=-1) for part in parts], axis=-2)
        blocks = self.shape_of_scales[-1]
        x = jnp.max(pieces.reshape(*first, tall, blocks, -1, rows), axis=-2)
        return jnp.swapaxes(x, -1, -2).reshape(self.shape_of_scales)

    def spread(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The values of `x` for each block, repeated for each element."""
        *first, tall, wide, rows, _ = self.shape
        x = jnp.swapaxes(x.reshape(*first, tall, rows, -1), -1, -2)[..., None, :]
        x = jnp.broadcast_to(x, (*x.shape[:-2], self.size // self._piece, rows))
        x = x.reshape(*first, tall, wide, self._pieces, rows)[..., None]
        number, (result, *others) = self._number_of_piece(), jnp.unstack(x, axis=-3)
        for i, other in enumerate(others, 1):
            result = jnp.where(number < i, result, other)
        return result

    def _number_of_piece(self) -> Int[Array, "columns"]:
        return lax.iota(jnp.int32, COLUMNS) // self._piece
