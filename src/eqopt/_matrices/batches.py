"""Batches of equal matrices, and how batches take turns."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
from jax import lax
from jaxtyping import Array

from .._core.equation import MISFITS, Arguments, Equation
from .._core.leafwise import Operation, Values, load_row, store_row, stored_like
from .._jax_internals import is_traced
from .._platforms import read_slices
from .._trees.sharding import is_in_shard_map


# What takes most of the time of an equation: many products of matrices, few or none,
# eigendecompositions and such, or QR decompositions.
Work: TypeAlias = Literal["products", "few products", "decompositions", "QR"]


class Batching(NamedTuple):
    """How equal matrices are computed.

    **Attributes:**

    - `limits`: the number of elements in a batch, by platform.
    - `turns`: the platforms on which a batch waits for the results of the one before.
    - `numbers_wait`: whether the numbers that all batches share wait, too.
    - `results_wait`: the platforms on which the readers of its results wait, too.
    """

    limits: dict[str, int]
    turns: frozenset[str] = frozenset()
    numbers_wait: bool = False
    results_wait: frozenset[str] = frozenset()

    @property
    def largest(self) -> int:
        """The number of elements in the largest batch, on any platform."""
        return max(self.limits.values())


_GPU, _BOTH = frozenset({"default"}), frozenset({"default", "tpu"})

# A batch of updates has 64 MB in float32, and on a TPU 16 MB, so that what an iteration
# computes stays in its fast memory. A larger matrix keeps a device busy on its own, so
# joining it to others would only take memory. A TPU gets few decompositions, because each
# one compiles to a large program; with turns of batches as large, APOLLO would take 1.2
# sizes of the parameters instead of 0.4. A GPU computes QR decompositions one by one, so
# smaller batches take the same time (SOAP on an H200: 111 ms, not 110), and less memory.
# With decompositions, numbers do not wait: compiled for an H100, Shampoo would take 2.4
# instead of 1.8.
BATCHINGS: dict[Work, Batching] = {
    "products": Batching({"default": 2**24, "tpu": 2**22}, _BOTH, True, _BOTH),
    "few products": Batching(
        {"default": 2**24, "tpu": 2**22}, _BOTH, True, frozenset({"tpu"})
    ),
    "decompositions": Batching({"default": 2**24, "tpu": 2**24}, _GPU, False, _GPU),
    "QR": Batching({"default": 2**22, "tpu": 2**24}, _GPU),
}


# If devices divide the matrices, each one receives 16 MB in float32 at a time: one part
# of the matrices can travel while another one is computed. Compiled for 8 H100, with 64
# matrices of 1024 x 1024, Muon also keeps 3.4 shards instead of 4.5.
DIVIDED = Batching({"default": 2**22})

# If devices divide the state, too, each one computes so many elements of its share at a
# time. Compiled for 8 H100, with 64 matrices of 1024 x 1024, SOAP keeps 2.5 shards; with
# 2**21 elements, 4.3.
SHARE = 2**20


def make_batches(keys: Sequence[Hashable], elements: Sequence[int], limit: int):
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


class BatchedEquation(Equation):
    """An equation of matrices, whose leaves are computed several at a time."""

    batching: Batching

    def compute_all(self, calls: Sequence[Arguments], limit: int) -> list[Any]:
        """The results for several leaves; a batch has at most `limit` elements."""
        return [self(*leaves, **shared) for leaves, shared in calls]

    def batch_key(self, g: Any, *leaves: Any) -> Hashable:
        """A key that is equal for leaves that `compute_all` may compute at once.

        It is `None` if it never does this.
        """
        return None

    def of_rows(self, operation, of_each, values, rows) -> dict[int, tuple]:
        """The results for the rows of all leaves.

        Under `jit`, an accelerator joins equal matrices into batches. A CPU computes one
        leaf after the other, unless devices divide the matrices. There, with 48 matrices
        of 256 x 256, a step of Muon in batches was a tenth slower, took twice as long to
        compile, and used three times the memory.
        """
        if not any(is_traced(row[0]) for row in rows.values()):
            return of_each(values, rows)
        keys = [self.batch_key(*row) for row in rows.values()]
        known = [key for key in keys if key is not None]
        has_equal = len({*known}) < len(known)
        # What is as small as a batch of a GPU need not wait: tracing it for accelerators,
        # too, would take twice as long. In a `shard_map`, JAX 0.10 would take all results
        # for varying if one of them is.
        limits, sizes = self.batching.limits, [row[0].size for row in rows.values()]
        is_large = sum(sizes) > limits["default"]
        may_wait = is_large and len(rows) > 1 and not is_in_shard_map()
        turns = self.batching.turns if may_wait else frozenset()
        if not (self.is_divided or turns or has_equal):
            return of_each(values, rows)

        def in_batches(platform):
            groups = [[*rows]]
            if platform in turns:
                # A leaf without a key is alone, named by its position.
                own = [i if x is None else x for x, i in zip(keys, rows, strict=True)]
                groups = [
                    [[*rows][k] for k in x]
                    for x in make_batches(own, sizes, limits[platform])
                ]

            def run_groups(values, rows):
                return _take_turns(operation, platform, groups, values, rows)

            return run_groups

        branches: dict[str, Callable] = {x: in_batches(x) for x in limits}
        if not self.is_divided:
            branches["cpu"] = of_each
        try:
            return lax.platform_dependent(values, rows, **branches)
        except MISFITS:
            of_each(values, rows)  # its error names the leaf
            raise


class Slice(NamedTuple):
    """The update of a leaf, as a part of the updates of its batch.

    **Attributes:**

    - `batch`: the updates of the batch.
    - `take`: takes the part out of them.
    """

    batch: Any
    take: Callable[[Any], Any]


def without_slices(out: Any) -> tuple:
    """The results of an equation for a leaf, as a tuple of arrays."""
    u, *new = out if isinstance(out, tuple) and not isinstance(out, Slice) else (out,)
    return (u.take(u.batch) if isinstance(u, Slice) else u, *new)


def in_place(fn: Callable, limit: int, g: Array, *leaves: Any) -> tuple:
    """`fn(g, *leaves)`, in parts along the first axis, which it treats alike.

    In a part, `g` has at most `limit` elements. `fn` returns as many arrays as it gets,
    of the same shapes, and they are written over the old ones, part by part. Modules are
    only read. Otherwise, XLA keeps what it computes for all matrices: SOAP would take 8.0
    shards in temporary memory (see `SHARE`) and move 65 instead of 66.
    """
    length, most = len(g), max(1, limit * len(g) // max(1, g.size))
    size = max(k for k in range(1, length + 1) if length % k == 0 and k <= most)
    if size == length:
        return fn(g, *leaves)
    modules, arrays = eqx.partition((g, *leaves), is_module, is_leaf=is_module)
    given, treedef = jax.tree.flatten(arrays)

    def of_part(i, arrays):
        own = read_slices([lax.dynamic_slice_in_dim(x, i * size, size) for x in arrays])
        own = eqx.combine(treedef.unflatten(own), modules, is_leaf=is_module)
        return [
            lax.dynamic_update_slice_in_dim(x, new, i * size, 0)
            for x, new in zip(arrays, jax.tree.leaves(fn(*own)), strict=True)
        ]

    arrays = lax.fori_loop(0, length // size, of_part, given)
    return tuple(x for x in treedef.unflatten(arrays) if x is not None)


def is_module(x: Any) -> bool:
    return isinstance(x, eqx.Module)


def _take_turns(operation, platform, groups, values, rows) -> dict[int, tuple]:
    """The results for all rows. Each group of rows waits for the one before.

    Otherwise, XLA keeps what all groups compute until the end. With 48 matrices of up to
    4096 x 1024, compiled for an H100, Shampoo takes 1.2 sizes of the parameters in
    temporary memory instead of 6.1; compiled for a TPU v5e, PSGDKron takes 1.1 instead
    of 3.5.

    With `numbers_wait`, the numbers that all groups share wait, too. Otherwise, XLA would
    compute with them for all groups at once, and lay out these groups alike. Where
    `results_wait`, XLA does not fuse later equations with each group. On an H100, with
    the transformer of the benchmarks, Muon then keeps 0.5 sizes of the parameters
    instead of 1.1; but SOAP would move 72 instead of 57, and SinkGD 32 instead of 30. The
    updates of a batch wait before they are cut into leaves (`Slice`): otherwise, each
    leaf would be copied, and Muon would move 61.6 instead of 59.8.
    """
    equation: Any = operation.equation
    batching, (packed, loose) = equation.batching, values
    found = []
    for group in groups:
        own = [rows[i] for i in group]
        if found:
            # Parameters and slots wait, too: otherwise, XLA transposes some of them at
            # the start.
            arrays, others = eqx.partition(own, lambda x: x.ndim > 0)
            numbers = packed if batching.numbers_wait else None
            done, finish = found[-1]
            done, arrays, numbers = lax.optimization_barrier((done, arrays, numbers))
            own = eqx.combine(arrays, others)
            packed = numbers if batching.numbers_wait else packed
            if platform in batching.results_wait:
                found[-1] = done, finish
        limit = batching.limits[platform]
        found.append(_compute(operation, limit, (packed, loose), own))
    outs = {}
    for group, (arrays, finish) in zip(groups, found, strict=True):
        outs.update(zip(group, finish(arrays), strict=True))
    return {i: outs[i] for i in rows}


def _compute(operation: Operation, limit: int, values: Values, rows: Sequence[tuple]):
    """Arrays, and a function that makes the results for some rows of them.

    The arrays are the updates of whole batches, and the other results.
    """
    equation: Any = operation.equation
    with jax.numpy_dtype_promotion("standard"):
        calls = [load_row(operation, values, row) for row in rows]
        outs = equation.compute_all(calls, limit)
        results = [
            store_row(operation, row, arguments, without_slices(out), stored_like)
            for row, (arguments, _), out in zip(rows, calls, outs, strict=True)
        ]
    firsts = [out[0] if isinstance(out, tuple) else out for out in outs]
    slices = {i: x for i, x in enumerate(firsts) if isinstance(x, Slice)}
    batches = {id(x.batch): x.batch for x in slices.values()}
    others = [x[1:] if i in slices else x for i, x in enumerate(results)]

    def finish(arrays):
        batches, results = arrays
        for i, x in slices.items():
            update = stored_like(x.take(batches[id(x.batch)]), rows[i][0])
            results[i] = update, *results[i]
        return results

    return (batches, others), finish
