"""Treats leaves as stacks of matrices."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._trees.axes import Axes, from_matrices, size, to_matrices


class Layout(eqx.Module):
    """How a leaf represents a stack of matrices. Static, and equal for equal axes."""

    axes: Axes = eqx.field(static=True)
    block_size: int | None = eqx.field(static=True)

    def apply(self, fn: Callable, g: Any, *leaves: Any) -> Any:
        """Applies `fn` to the matrices in `g` and `leaves`, and restores their layout."""
        there = [self.split(x) for x in (g, *leaves)]
        out = over_stack(fn, there, there[0].ndim - 2)(*there)
        if isinstance(out, tuple) and leaves:
            return tuple(self.joined(x, g.shape) for x in out)
        return self.joined(out, g.shape)

    def sides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of rows and columns of each matrix in a leaf of this shape."""
        sides = (size(shape, side) for side in self.axes[1:])
        return tuple(math.ceil(n / self._blocks(n)) for n in sides)

    def split(self, x: Any) -> Any:
        """The matrices in an array, with the axes of the stack first."""
        if isinstance(x, tuple | eqx.Module):
            return x
        x = to_matrices(x, self.axes)
        counts = [self._blocks(n) for n in x.shape[-2:]]
        if counts == [1, 1]:
            return x
        sides = [math.ceil(n / k) for n, k in zip(x.shape[-2:], counts, strict=True)]
        *stack, rows, columns = x.shape
        (k, j), (m, n) = counts, sides
        x = jnp.pad(
            x, [(0, 0)] * len(stack) + [(0, k * m - rows), (0, j * n - columns)]
        )
        return jnp.moveaxis(x.reshape(*stack, k, m, j, n), -3, -2)

    def joined(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The inverse of `split`, for a leaf of this shape."""
        if isinstance(x, tuple):
            return x
        sides = [size(shape, side) for side in self.axes[1:]]
        if x.ndim > len(self.axes.stack) + 2:
            *stack, k, j, m, n = x.shape
            x = jnp.moveaxis(x, -2, -3).reshape(*stack, k * m, j * n)
            x = x[..., : sides[0], : sides[1]]
        own = list(shape)
        for side, n, found in zip(self.axes[1:], sides, x.shape[-2:], strict=True):
            if found != n:
                for axis in side:
                    own[axis] = 1
        return from_matrices(x, self.axes, jax.ShapeDtypeStruct(tuple(own), x.dtype))

    def stack(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the axes of the stack for a leaf of this shape."""
        blocks = [self._blocks(size(shape, side)) for side in self.axes[1:]]
        stack = tuple(shape[axis] for axis in self.axes.stack)
        return stack if blocks == [1, 1] else (*stack, *blocks)

    def _blocks(self, n: int) -> int:
        size = self.block_size
        return 1 if size is None else max(1, math.ceil(n / size))


def over_stack(fn: Callable, arguments: Sequence[Any], count: int) -> Callable:
    """`fn` mapped over the first `count` axes of the arrays in `arguments`.

    The axes are not merged: an axis that is sharded could not keep its shards.
    """
    axes = [None if isinstance(x, eqx.Module) else 0 for x in arguments]
    for _ in range(count):
        fn = jax.vmap(fn, axes)
    return fn


def map_layouts(
    fn: Callable,
    layouts: PyTree[Layout | None],
    *trees: PyTree,
    otherwise: Callable = lambda *leaves: None,
) -> PyTree:
    """`fn(layout, *leaves)` for each matrix, and `otherwise(*leaves)` elsewhere."""
    return jax.tree.map(
        lambda x, *leaves: otherwise(*leaves) if x is None else fn(x, *leaves),
        layouts,
        *trees,
        is_leaf=lambda x: x is None or isinstance(x, Layout),
    )


def are_matrices(layouts: PyTree[Layout | None]) -> PyTree[bool]:
    """A mask of the leaves that have a layout."""
    return map_layouts(lambda layout: True, layouts, otherwise=lambda: False)


# The number of elements in a batch of updates: 64 MB in float32, and on a TPU 16 MB, so
# that what an iteration computes stays in its fast memory. A larger matrix keeps a device
# busy on its own, so joining it to others would only take memory.
BATCH = {"default": 2**24, "tpu": 2**22}


def batches(
    keys: Sequence[Hashable], elements: Sequence[int], limit: int
) -> Iterator[list[int]]:
    """The indices in each batch: of equal keys, and of at most `limit` elements."""
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    for group in groups.values():
        batch, found = [], 0
        for i in group:
            if batch and found + elements[i] > limit:
                yield batch
                batch, found = [], 0
            batch.append(i)
            found += elements[i]
        yield batch
