"""How leaves represent stacks of matrices, and blocks within a matrix."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Inexact

from .._trees.sharding import has_explicit_axes
from .._types import PyTree
from ..numerics._numerics import common_dtype, wide_dtype
from .axes import size


class Sides(NamedTuple):
    """The axes of a stack of matrices: of the stack, of the rows and of the columns."""

    stack: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        return self.stack + self.rows + self.columns

    def lengths(self, shape: Sequence[int]) -> list[int]:
        """The numbers of rows and columns of an array of this shape."""
        return [size(shape, self.rows), size(shape, self.columns)]

    def to_matrices(
        self, x: Inexact[Array, "*leaf"]
    ) -> Inexact[Array, "*stack rows columns"]:
        stack = [x.shape[axis] for axis in self.stack]
        return jnp.transpose(x, self.order).reshape(*stack, *self.lengths(x.shape))

    def from_matrices(
        self, matrices: Inexact[Array, "*stack rows columns"], shape: Sequence[int]
    ) -> Inexact[Array, "*leaf"]:
        """The inverse of `to_matrices`, for an array of this shape."""
        order = self.order
        back = sorted(range(len(order)), key=order.__getitem__)
        return jnp.transpose(matrices.reshape([shape[i] for i in order]), back)


class Layout(eqx.Module):
    """How a leaf represents a stack of matrices. Static, and equal for equal axes.

    - `sides`: the axes of the matrices, after each axis in `split_axes` became two.
    - `block_size`: the largest side of a matrix; longer ones are split, with padding.
    - `split_axes`: axes of the leaf, each with its number of equal blocks.
    """

    sides: Sides = eqx.field(static=True)
    block_size: int | None = eqx.field(static=True)
    split_axes: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())

    def stack(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the axes of the stack for a leaf of this shape."""
        inner = self._inner(shape)
        blocks = [*map(self._blocks, self.sides.lengths(inner))]
        stack = tuple(inner[axis] for axis in self.sides.stack)
        return stack if blocks == [1, 1] else (*stack, *blocks)

    def _inner(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with two axes for each axis that is split: the blocks, and the rest."""
        counts, sizes = dict(self.split_axes), []
        for axis, n in enumerate(shape):
            k = counts.get(axis)
            sizes += [n] if k is None else [k, n // k]
        return tuple(sizes)

    def apply(self, fn: Callable, g: Any, *leaves: Any) -> Any:
        """Applies `fn` to the matrices in `g` and `leaves`, and restores their layout."""
        there = [self.split(x, g.shape) for x in (g, *leaves)]
        out = over_stack(fn, there, there[0].ndim - 2)(*there)
        if isinstance(out, tuple) and leaves:
            return tuple(self.merge(x, g.shape) for x in out)
        return self.merge(out, g.shape)

    def size_of_one(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of rows and columns of each matrix in a leaf of this shape."""
        lengths = self.sides.lengths(self._inner(shape))
        return tuple(math.ceil(n / self._blocks(n)) for n in lengths)

    def split(self, x: Any, shape: tuple[int, ...] | None = None) -> Any:
        """The matrices in an array, with the axes of the stack first.

        The array belongs to a leaf of this shape, by default its own.
        """
        if isinstance(x, tuple | eqx.Module):
            return x
        inner = self._inner(x.shape if shape is None else shape)
        if self.split_axes:
            x = jnp.reshape(x, self._inner(x.shape))
        x = self.sides.to_matrices(x)
        counts = [*map(self._blocks, self.sides.lengths(inner))]
        if counts == [1, 1]:
            return x
        # A side with one number for each block is as long as the count.
        sides = [math.ceil(n / k) for n, k in zip(x.shape[-2:], counts, strict=True)]
        *stack, rows, columns = x.shape
        (k, j), (m, n) = counts, sides
        x = jnp.pad(
            x, [(0, 0)] * len(stack) + [(0, k * m - rows), (0, j * n - columns)]
        )
        return jnp.moveaxis(x.reshape(*stack, k, m, j, n), -3, -2)

    def merge(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The inverse of `split`, for a leaf of this shape."""
        if isinstance(x, tuple):
            return x
        inner = self._inner(shape)
        rows, columns = lengths = self.sides.lengths(inner)
        if x.ndim > len(self.sides.stack) + 2:
            *stack, k, j, m, n = x.shape
            x = jnp.moveaxis(x, -2, -3).reshape(*stack, k * m, j * n)
            x = x[..., :rows, :columns]
        own = list(inner)
        for side, n, found in zip(self.sides[1:], lengths, x.shape[-2:], strict=True):
            if found != n:  # one number, or one for each block
                for axis, length in zip(side, (found, *[1] * len(side)), strict=False):
                    own[axis] = length
        x = self.sides.from_matrices(x, own)
        return jnp.reshape(x, self._outer(own)) if self.split_axes else x

    def _outer(self, inner: Sequence[int]) -> tuple[int, ...]:
        """The inverse of `_inner`."""
        counts, sizes, rest = dict(self.split_axes), [], iter(inner)
        for n in rest:
            sizes.append(n * next(rest) if len(sizes) in counts else n)
        return tuple(sizes)

    def _blocks(self, n: int) -> int:
        size = self.block_size
        return 1 if size is None else max(1, math.ceil(n / size))


class Pieces(eqx.Module):
    """How a leaf is cut along an axis into pieces, each with its own layout. Static."""

    axis: int = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    layouts: "tuple[Layout | Pieces, ...]" = eqx.field(static=True)

    def cut(self, x: Any) -> tuple[Any, ...]:
        """The part of `x` for each piece. A tuple has one part for each piece already."""
        if isinstance(x, tuple):
            return x
        if isinstance(x, eqx.Module):
            return (x,) * len(self.sizes)
        is_whole = x.shape[self.axis] == sum(self.sizes)
        # If not, it has one entry for each piece.
        sizes = self.sizes if is_whole else (1,) * len(self.sizes)
        return tuple(lax.split(x, sizes, self.axis))

    def whole(self, parts: Sequence[Any]) -> Any:
        """The inverse of `cut`."""
        if isinstance(parts[0], tuple):
            return tuple(parts)
        return lax.concatenate(parts, self.axis)

    def apply(self, fn: Callable, g: Any, *leaves: Any) -> Any:
        """As for a `Layout`."""
        rows = zip(*map(self.cut, (g, *leaves)), strict=True)
        out = [x.apply(fn, *row) for x, row in zip(self.layouts, rows, strict=True)]
        return self.merge(out, is_many=bool(leaves))

    def merge(self, out: Sequence[Any], is_many: bool) -> Any:
        """One result for the leaf, or several, from the results for its pieces."""
        if is_many and isinstance(out[0], tuple):
            return tuple(map(self.whole, zip(*out, strict=True)))
        return self.whole(out)

    def size_of_one(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The size of the matrices in the largest piece."""
        pieces = zip(self.layouts, self.shapes(shape), strict=True)
        return max((x.size_of_one(own) for x, own in pieces), key=math.prod)

    def stack(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """No axes: equal matrices of pieces and of other leaves are in one batch."""
        return ()

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shape of each piece."""
        before, after = shape[: self.axis], shape[self.axis + 1 :]
        return [(*before, n, *after) for n in self.sizes]


def over_stack(fn: Callable, arguments: Sequence[Any], count: int) -> Callable:
    """`fn` mapped over the first `count` axes of the arrays in `arguments`.

    The axes are not merged: an axis that is sharded could not keep its shards.
    """
    axes = [None if isinstance(x, eqx.Module) else 0 for x in arguments]
    for _ in range(count):
        fn = jax.vmap(fn, axes)
    return fn


def layout_of(axes, shape, block_size, choose_rows) -> Layout | Pieces:
    """The layout for these axes and blocks.

    `choose_rows` returns the axes of the rows and of the columns of each block.
    """
    for axis, sizes in axes.blocks:
        if len({*sizes}) > 1:
            others = tuple(x for x in axes.blocks if x[0] != axis)
            rest = axes._replace(blocks=others)
            own = Pieces(axis, sizes, ()).shapes(shape)
            pieces = (layout_of(rest, x, block_size, choose_rows) for x in own)
            return Pieces(axis, sizes, tuple(pieces))
    counts = {axis: len(sizes) for axis, sizes in axes.blocks}
    block = tuple(n // counts.get(axis, 1) for axis, n in enumerate(shape))
    # Each axis that is split becomes two: its blocks, and the axis of each block.
    new = [axis + sum(x <= axis for x in counts) for axis in range(len(shape))]
    stack = sorted([*(new[x] - 1 for x in counts), *(new[x] for x in axes.stack)])
    sides = (tuple(new[x] for x in side) for side in choose_rows(axes, block))
    return Layout(Sides(tuple(stack), *sides), block_size, tuple(counts.items()))


def is_layout(x: Any) -> bool:
    return isinstance(x, Layout | Pieces)


def map_layouts(fn, layouts, *trees, otherwise=lambda *leaves: None) -> PyTree:
    """`fn(layout, *leaves)` for each matrix, and `otherwise(*leaves)` elsewhere."""
    return jax.tree.map(
        lambda x, *leaves: otherwise(*leaves) if x is None else fn(x, *leaves),
        layouts,
        *trees,
        is_leaf=lambda x: x is None or is_layout(x),
    )


def mask_matrices(layouts: PyTree[Layout | None]) -> PyTree[bool]:
    """A mask of the leaves that have a layout."""
    return map_layouts(lambda layout: True, layouts, otherwise=lambda: False)


def make_slot(make, zeros, layout: Layout | Pieces, dtype: DTypeLike | None) -> Any:
    """The result of `make`, with the placement of `zeros`, and so of the parameter.

    An array has the axes of the parameter, and their placement. A tuple is computed from
    `zeros` as in a step, so that XLA places it as it will in a step. On a mesh with
    explicit axes that would fail, and its arrays are whole.
    """
    wide = wide_dtype(zeros.dtype)
    of_all = functools.partial(layout.apply, make)
    shapes = jax.eval_shape(of_all, jax.ShapeDtypeStruct(zeros.shape, wide))
    if isinstance(shapes, tuple):
        is_explicit, nothing = has_explicit_axes(zeros), jnp.sum(zeros)
        start = jnp.zeros(zeros.shape, wide) if is_explicit else zeros.astype(wide)
        return jax.tree.map(lambda x: x + _as(nothing, x, x.dtype), of_all(start))
    axes = [i for i, n in enumerate(shapes.shape) if n != zeros.shape[i]]
    dtype = shapes.dtype if dtype is None else dtype
    zeros = jnp.sum(zeros, axes, keepdims=True) if axes else zeros
    if zeros.shape != shapes.shape:  # a number for each block
        zeros = jnp.broadcast_to(zeros, shapes.shape)
    return _as(zeros, shapes, dtype)


def _as(x, like, dtype):
    """`x` in the precision of `dtype`, complex if `like` is."""
    real = jnp.finfo(dtype).dtype
    if jnp.iscomplexobj(like):
        return x.astype(common_dtype(real, jnp.complex64))
    return x.real.astype(real)
