"""Matrices on accelerators: equal ones in batches, and batches one after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from jax import lax
from jaxtyping import Array

from .._trees.sharding import is_in_shard_map
from .batches import Batching, batches
from .equation import MISFITS, Equation


def compute_matrices(
    equation: Equation,
    of_leaves: Callable[[Array, dict, Any], dict],
    of_all: Callable[[int], Callable],
    packed: Array,
    rows: dict[int, tuple],
    loose: Sequence[Any],
) -> dict[int, tuple]:
    """The results of an equation of matrices, for the rows of all leaves.

    A CPU calls `of_leaves(packed, rows, loose)`, one leaf after the other. There, with 48
    matrices of 256 x 256, a step of Muon in batches was a tenth slower, took twice as
    long to compile, and used three times the memory. An accelerator calls
    `of_all(limit)(packed, rows, loose)`, which joins equal matrices into batches.
    """
    batching: Any = equation.batching
    keys = [equation.batch_key(*row) for row in rows.values()]
    known = [key for key in keys if key is not None]
    has_equal = len({*known}) < len(known)
    # What is as small as a batch of a GPU need not wait: tracing it for accelerators,
    # too, would take twice as long. In a `shard_map`, JAX 0.10 would take all results for
    # varying if one of them is.
    is_large = sum(row[0].size for row in rows.values()) > batching.limits["default"]
    may_wait = is_large and len(rows) > 1 and not is_in_shard_map()
    turns = batching.turns if may_wait else frozenset()

    if not (batching.is_divided or turns or has_equal):
        return of_leaves(packed, rows, loose)

    def in_batches(platform, limit):
        groups = [[*rows]]
        if platform in turns:
            # A leaf without a key is alone, named by its position.
            own = [i if key is None else key for key, i in zip(keys, rows, strict=True)]
            sizes = [row[0].size for row in rows.values()]
            groups = [[[*rows][k] for k in x] for x in batches(own, sizes, limit)]
        run = of_all(limit)

        def run_groups(packed, rows, loose):
            return _take_turns(run, groups, packed, rows, loose, batching)

        return run_groups

    branches: dict[str, Callable] = {
        x: in_batches(x, limit) for x, limit in batching.limits.items()
    }
    if not batching.is_divided:
        branches["cpu"] = of_leaves
    try:
        return lax.platform_dependent(packed, rows, loose, **branches)
    except MISFITS:
        of_leaves(packed, rows, loose)  # its error names the leaf
        raise


def _take_turns(
    run: Callable,
    groups: Sequence[Sequence[int]],
    packed: Array,
    rows: dict[int, tuple],
    loose: Sequence[Any],
    batching: Batching,
) -> dict[int, tuple]:
    """The results for all rows. Each group of rows waits for the results of the last one.

    Otherwise, XLA keeps what all groups compute until the end. With 48 matrices of up to
    4096 x 1024, compiled for an H100, Shampoo takes 1.2 sizes of the parameters in
    temporary memory instead of 6.1; compiled for a TPU v5e, PSGDKron takes 1.1 instead
    of 3.5.

    With `numbers_wait`, the numbers that all groups share wait, too. Otherwise, XLA would
    compute with them for all groups at once, and lay out these groups alike. Without
    `results_wait`, later equations are fused with each group: compiled for an H100,
    with the transformer of the benchmarks, SOAP then moves 57 instead of 72, but Muon
    keeps 1.1 instead of 0.5.
    """
    outs: dict[int, tuple] = {}
    last: Sequence[int] = ()
    for group in groups:
        own = [rows[i] for i in group]
        if last:
            # Parameters and slots wait, too: otherwise, XLA transposes some of them at
            # the start.
            arrays, others = eqx.partition(own, lambda x: x.ndim > 0)
            numbers = packed if batching.numbers_wait else None
            done, arrays, numbers = lax.optimization_barrier(
                ([outs[i] for i in last], arrays, numbers)
            )
            own = eqx.combine(arrays, others)
            packed = numbers if batching.numbers_wait else packed
            if batching.results_wait:
                outs.update(zip(last, done, strict=True))
        outs.update(zip(group, run(packed, own, loose), strict=True))
        last = group
    return {i: outs[i] for i in rows}
