"""Treats leaves as stacks of matrices, and applies equations of one matrix to leaves."""

import functools
import inspect
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from .._caches import cached
from .._trees.axes import Axes, from_matrices, size, to_matrices
from ..numerics import common_dtype
from .equation import Call, Equation, ShapeMismatch


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


class _OnMatrices(Equation):
    """An equation of one matrix, applied to each matrix in a leaf."""

    is_of_matrices = True

    def __init__(self, equation: Equation, in_batches: bool, decomposes: bool):
        functools.update_wrapper(self, equation)
        self.name, self._equation = equation.name, equation
        self._in_batches, self._decomposes = in_batches, decomposes
        self.leaves = (*equation.leaves, "layout")
        self.shared = equation.shared
        parameters = inspect.signature(inspect.unwrap(equation._fn)).parameters
        self._is_real = [_is_real(parameters[x].annotation) for x in equation.leaves]

        @eqx.filter_jit  # traced once for batches of the same types
        def of_many(shared: dict, count: int, *columns: Any) -> Any:
            fn = functools.partial(equation, **shared)
            return over_stack(fn, columns, count)(*columns)

        self._of_many = of_many

    def __call__(self, g: Any, *leaves: Any, **shared: Any) -> Any:
        *arguments, layout = leaves
        self.check_complex(g, arguments)
        fn = functools.partial(self._equation, **shared)
        return layout.apply(fn, g, *arguments)

    def check_complex(self, g: Any, arguments: Sequence[Any]) -> None:
        """Raises an error if the update is complex, but no slot is."""
        if not jnp.iscomplexobj(g):
            return
        # Modules hold unrelated numbers, and some slots are always real.
        slots = jax.tree.leaves(
            [
                x
                for x, is_real in zip(arguments, self._is_real, strict=True)
                if not is_real and not isinstance(x, eqx.Module)
            ]
        )
        if slots and not any(map(jnp.iscomplexobj, slots)):
            raise ShapeMismatch("a complex update for real slots")

    def batch_key(self, g: Any, *leaves: Any) -> Hashable:
        """A key that two leaves share if their matrices can be in one batch.

        It is `None` if two of these matrices are too large for one batch.
        """
        *arguments, layout = leaves
        sides, stack = layout.sides(g.shape), layout.stack(g.shape)
        is_large = 2 * math.prod(sides) > BATCH["default"]
        if not self._in_batches or is_large or self._is_batch(stack):
            return None
        # Of updates in several precisions, all are computed in float32 at least.
        dtype = common_dtype(g.dtype, jnp.float32)
        return sides, stack, dtype, jax.tree.structure(arguments)

    def _is_batch(self, stack: tuple[int, ...]) -> bool:
        """Whether a leaf is a batch by itself.

        Joining stacks would copy them, and two that are sharded in different ways would
        be exchanged between devices. But each decomposition is another large program.
        """
        return bool(stack) and not self._decomposes

    def of_all(self, calls: Sequence[Call], limit: int) -> list[Any]:
        """The results for several leaves, with equal matrices in batches."""
        if len(calls) == 1 or not self._in_batches:
            return super().of_all(calls, limit)
        results: list[Any] = [None] * len(calls)
        stacks = {}
        for i, (leaves, shared) in enumerate(calls):
            if self._is_batch(leaves[-1].stack(leaves[0].shape)):
                results[i] = self(*leaves, **shared)
            else:
                self.check_complex(leaves[0], leaves[1:-1])
                stacks[i] = _stacked(leaves)
        if self._decomposes:  # what a decomposition compiles to is large on a TPU
            limit = BATCH["default"]
        places, found = [*stacks], [*stacks.values()]
        elements = [math.prod(s.arguments[0].shape) for s in found]
        for batch in batches([s.key for s in found], elements, limit):
            _, shared = calls[places[batch[0]]]
            some = _in_one_batch(self._of_many, shared, [found[i] for i in batch])
            for i, out in zip(batch, some, strict=True):
                results[places[i]] = out
        return results


on_matrices = cached(_OnMatrices)


def _is_real(annotation: Any) -> bool:
    """Whether an annotation such as `Float[Array, "m 1"]` excludes complex arrays."""
    dtypes = getattr(annotation, "dtypes", ())
    return "float32" in dtypes and "complex64" not in dtypes


# The number of elements in a batch of updates: 64 MB in float32, and on a TPU 16 MB, so
# that what an iteration computes stays in its fast memory. A larger matrix keeps a device
# busy on its own, so joining it to others would only take memory.
BATCH = {"default": 2**24, "tpu": 2**22}


class _Stack(NamedTuple):
    """The arguments of an equation, with another leading axis, of size one.

    **Attributes:**

    - `arguments`: the matrices, and the modules that they share.
    - `layout`, `shape`: the layout and the shape of the leaf.
    - `key`: equal for matrices, or stacks of them, that can be in one batch.
    """

    arguments: list[Any]
    layout: Layout
    shape: tuple[int, ...]
    key: Hashable


def _stacked(leaves):
    g, *arguments, layout = leaves
    there = [layout.split(x) for x in (g, *arguments)]
    of_one = lambda x: lax.expand_dims(x, (0,))
    there = [x if isinstance(x, eqx.Module) else jax.tree.map(of_one, x) for x in there]
    found, structure = jax.tree.flatten(there)
    types = [(x.shape, x.dtype) for x in found]
    # Modules have no axis of matrices, so they must be the same arrays.
    modules = jax.tree.leaves([x for x in there if isinstance(x, eqx.Module)])
    key = structure, tuple(types), tuple(map(id, modules))
    return _Stack(there, layout, g.shape, key)


def _in_one_batch(of_many: Callable, shared: dict, stacks: list[_Stack]) -> list[Any]:
    """Applies `of_many` to all matrices, and restores the layouts of the leaves."""
    together = [
        column[0]
        if isinstance(column[0], eqx.Module)
        else jax.tree.map(lambda *x: lax.concatenate(x, 0), *column)
        for column in zip(*(s.arguments for s in stacks), strict=True)
    ]
    out = of_many(shared, together[0].ndim - 2, *together)
    leaves, structure = jax.tree.flatten(out)
    results = []
    for i, s in enumerate(stacks):
        result = structure.unflatten(lax.index_in_dim(x, i, 0, False) for x in leaves)
        back = lambda x, s=s: s.layout.joined(x, s.shape)
        is_many = isinstance(result, tuple)
        results.append(tuple(map(back, result)) if is_many else back(result))
    return results


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
