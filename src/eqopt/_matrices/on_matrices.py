"""Applies equations of one matrix to leaves, with equal matrices in batches."""

import functools
import inspect
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from .._core.equation import Arguments, Equation, ShapeMismatch, cached
from ..numerics._numerics import common_dtype
from .batches import (
    BATCHINGS,
    DIVIDED,
    BatchedEquation,
    Slice,
    in_place,
    make_batches,
    without_slices,
)
from .division import AbstractWhole, Division, pass_division
from .layouts import Layout, Pieces, over_stack


class _OnMatrices(BatchedEquation):
    """An equation of one matrix, applied to each matrix in a leaf."""

    def __init__(
        self,
        equation: Equation,
        in_batches: bool,
        work: Any,
        division: Division | None,
        limit: int | None,
    ):
        functools.update_wrapper(self, equation, updated=())
        self.name, self._equation = equation.name, equation
        self._in_batches = in_batches = in_batches and limit is None
        self._limit = limit
        self._work = work
        self._division = division if in_batches else None
        self.is_divided = is_divided = self._division is not None
        self.batching = DIVIDED if is_divided else BATCHINGS[work]
        if not in_batches:
            self.batching = self.batching._replace(turns=frozenset())
        self.leaves = (*equation.leaves, "layout")
        self.shared, self.modules = equation.shared, equation.modules
        parameters = inspect.signature(inspect.unwrap(equation._fn)).parameters
        self._is_real = [_is_real(parameters[x].annotation) for x in equation.leaves]
        types = [parameters[x].annotation for x in equation.shared]
        has_whole = any(
            isinstance(x, type) and issubclass(x, AbstractWhole) for x in types
        )
        # Whether devices exchange all arguments and results, not only these parts.
        self._moves_all = is_divided and not has_whole

        @eqx.filter_jit  # traced once for batches of the same types
        def run_many(shared: dict, count: int, *columns: Any) -> Any:
            fn = functools.partial(equation, **shared)
            return over_stack(fn, columns, count)(*columns)

        self._run_many = run_many

    def __call__(self, g: Any, *leaves: Any, **shared: Any) -> Any:
        *arguments, layout = leaves
        self.check_complex(g, arguments)
        shared = pass_division(self._division, shared, layout.stack(g.shape))
        fn = functools.partial(self._equation, **shared)
        apply = functools.partial(layout.apply, fn)
        if self._limit is None:
            return apply(g, *arguments)
        return in_place(apply, self._limit, g, *arguments)

    def check_complex(self, g: Any, arguments: Sequence[Any]) -> None:
        """Raises an error if the update is complex, but no slot is."""
        if not jnp.iscomplexobj(g):
            return
        # Modules hold unrelated numbers, and some slots are always real.
        pairs = zip(arguments, self._is_real, strict=True)
        wide = [x for x, is_real in pairs if not is_real]
        slots = jax.tree.leaves([x for x in wide if not isinstance(x, eqx.Module)])
        if slots and not any(map(jnp.iscomplexobj, slots)):
            raise ShapeMismatch("a complex update for real slots")

    def batch_key(self, g: Any, *leaves: Any) -> Hashable:
        """A key that two leaves share if their matrices can be in one batch.

        It is `None` if it is never with others in one: two of these matrices are too
        large, or the leaf is a batch by itself.
        """
        *arguments, layout = leaves
        sides, stack = layout.size_of_one(g.shape), layout.stack(g.shape)
        is_large = 2 * math.prod(sides) > self.batching.largest
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
        is_of_products = self._work in ("products", "few products")
        return bool(stack) and is_of_products and not self._moves_all

    def compute_all(self, calls: Sequence[Arguments], limit: int) -> list[Any]:
        """The results for several leaves, with equal matrices in batches."""
        is_alone = len(calls) == 1 and not self._moves_all
        is_cut = any(isinstance(leaves[-1], Pieces) for leaves, _ in calls)
        divides_pieces = is_cut and self._division is not None
        if not self._in_batches or (is_alone and not divides_pieces):
            return super().compute_all(calls, limit)
        if is_cut:
            return self._compute_pieces(calls, limit)
        results: list[Any] = [None] * len(calls)
        found_at = {}
        for i, (leaves, shared) in enumerate(calls):
            if self._is_batch(leaves[-1].stack(leaves[0].shape)):
                results[i] = self(*leaves, **shared)
            else:
                self.check_complex(leaves[0], leaves[1:-1])
                found_at[i] = _split(leaves)
        places, found = [*found_at], [*found_at.values()]
        elements = [math.prod(s.arguments[0].shape) for s in found]
        split = make_batches if self._division is None else self._division.batches
        for batch in split([s.key for s in found], elements, limit):
            _, shared = calls[places[batch[0]]]
            some = self._compute_batch(shared, [found[i] for i in batch])
            for i, out in zip(batch, some, strict=True):
                results[places[i]] = out
        return results

    def _compute_pieces(self, calls: Sequence[Arguments], limit: int) -> list[Any]:
        """The results for leaves some of which are cut into pieces."""
        parts, counts = [], []
        for (*leaves, layout), shared in calls:
            is_cut = isinstance(layout, Pieces)
            rows = zip(*map(layout.cut, leaves), strict=True) if is_cut else [leaves]
            own = layout.layouts if is_cut else (layout,)
            parts += [((*r, x), shared) for r, x in zip(rows, own, strict=True)]
            counts.append(len(own))
        found = iter(self.compute_all(parts, limit))
        results = []
        for ((_, *others, layout), _), count in zip(calls, counts, strict=True):
            own = [next(found) for _ in range(count)]
            if isinstance(layout, Pieces):
                whole = [without_slices(x) for x in own]
                own = [
                    layout.merge([x if others else x[0] for x in whole], bool(others))
                ]
            results.append(own[0])
        return results

    def _compute_batch(self, shared: dict, found: list["_Leaf"]) -> list[Any]:
        """The results for all matrices, in the layouts of the leaves."""
        columns = [
            column[0]
            if isinstance(column[0], eqx.Module)
            else jax.tree.map(lambda *x: lax.concatenate(x, 0), *column)
            for column in zip(*(x.arguments for x in found), strict=True)
        ]
        first: Any = columns[0]
        stack = first.shape[:-2]
        division = self._division and self._division._replace(is_of_leaves=True)
        shared = pass_division(division, shared, stack)
        run = functools.partial(self._run_many, shared, len(stack))
        if division is None:
            out = run(*columns)
        elif self._moves_all:
            out = division.compute(run, columns, stack)
        else:
            out = jax.tree.map(division.gather, run(*columns))
        u, *new = out if isinstance(out, tuple) else (out,)
        # A second moment of the products is computed leaf by leaf, and the update with
        # it: compiled for an H100, AdaMuon would move 37.7 instead of 36.3.
        is_late = self._work == "products" and not self.is_divided and len(new) < 2
        results = []
        for i, leaf in enumerate(found):

            def take(x, i=i, leaf=leaf):
                one = jax.tree.map(lambda x: lax.index_in_dim(x, i, 0, False), x)
                return leaf.layout.merge(one, leaf.shape)

            update = Slice(u, take) if is_late else take(u)
            results.append((update, *map(take, new)))
        return results


on_matrices = cached(_OnMatrices)


def _is_real(annotation: Any) -> bool:
    """Whether an annotation such as `Float[Array, "m 1"]` excludes complex arrays."""
    dtypes = getattr(annotation, "dtypes", ())
    return "float32" in dtypes and "complex64" not in dtypes


class _Leaf(NamedTuple):
    """The matrices of a leaf, with another leading axis, of size one.

    **Attributes:**

    - `arguments`: of the equation: the matrices, and the modules that they share.
    - `layout`, `shape`: the layout and the shape of the leaf.
    - `key`: equal for matrices, or stacks of them, that can be in one batch.
    """

    arguments: list[Any]
    layout: Layout
    shape: tuple[int, ...]
    key: Hashable


def _split(leaves):
    g, *arguments, layout = leaves
    there = [layout.split(x, g.shape) for x in (g, *arguments)]
    of_one = lambda x: lax.expand_dims(x, (0,))
    there = [x if isinstance(x, eqx.Module) else jax.tree.map(of_one, x) for x in there]
    found, structure = jax.tree.flatten(there)
    types = [(x.shape, x.dtype) for x in found]
    # Modules have no axis of matrices: those with arrays are in no batch.
    modules = jax.tree.leaves([x for x in there if isinstance(x, eqx.Module)])
    key = structure, tuple(types), object() if modules else None
    return _Leaf(there, layout, g.shape, key)
