"""Runs the kernel of each leaf, in an order that saves memory, and reports misfits."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree, TypeCheckError

from .._cpu.order import after, alone, loaded_after, runs_alone, takes_turn
from .._trees.leaves import keystr
from .._trees.sharding import is_in_shard_map
from .._trees.stored import has_stored
from .._types import State, Updates
from .batches import batches, common_batching
from .equation import ShapeMismatch
from .kernel import Operation, kernel_of_all
from .misfits import misfit


class Stage(NamedTuple):
    """A `Leafwise` whose trees are columns, aligned with the leaves of the updates."""

    owner: str
    operation: Operation
    state: State
    columns: dict[str, list]
    packed: list
    loose: list
    flags: list[bool]


class LeafKernel(NamedTuple):
    """The kernel for leaves with the same pattern of masks, and its arguments.

    **Attributes:**

    - `run`: the kernel for one leaf.
    - `program`: what it was made from, for a kernel of several leaves.
    - `packed`, `loose`: the shared values.
    - `takes_p`: whether it takes the parameter of each leaf.
    - `columns`: its other arguments for each leaf.
    - `slots`: the columns that it computes.
    - `stages`: the active stages.
    - `is_of_matrices`: whether it applies an equation of matrices.
    """

    run: Callable
    program: tuple[tuple, bool, Any]
    packed: Any
    loose: list
    takes_p: bool
    columns: list[list]
    slots: list[list]
    stages: list[Stage]
    is_of_matrices: bool

    @property
    def is_read_later(self) -> bool:
        """Whether other kernels read the results."""
        return self.program[-1] == "updates"


def run_leaf(
    kernel: LeafKernel,
    updates: Updates,
    i: int,
    row: list,
    previous: Any,
    is_on_cpu: bool = False,
) -> tuple[tuple, Any]:
    """The results for leaf number `i`, and an array for the next large leaf to wait for.

    `row` holds the arguments of the kernel, starting with the update.
    """
    run, packed, g = kernel.run, kernel.packed, row[0]
    try:
        if kernel.is_of_matrices and runs_alone(g):
            # XLA does not merge products with other work, so leaves can run in turn.
            out = alone(run, previous, is_on_cpu, packed, *row)
        elif takes_turn(run, g, packed, *row):
            if previous is not None:
                packed = after(previous, packed)
                row = [g, *(loaded_after(previous, x) for x in row[1:])]
            out = run(packed, *row)
        else:
            return run(packed, *row), previous
    except (ShapeMismatch, TypeCheckError) as error:
        raise _misfit(kernel, updates, i, row, error) from error
    return out, _last_computed(out)


def _last_computed(out: tuple) -> Any:
    """The array that the kernel of a leaf computes last: slots are stored at the end."""
    if not has_stored(out):
        return out[0]
    floats = [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return floats[-1]


def _misfit(
    kernel: LeafKernel, updates: Updates, i: int, row: list, error: Exception
) -> Exception:
    named = {"updates": row[0]} | ({"params": row[1]} if kernel.takes_p else {})
    for stage in kernel.stages:
        named |= {f"state.{k}": c[i] for k, c in stage.columns.items()}
    owners = [stage.owner for stage in kernel.stages]
    operations = [stage.operation for stage in kernel.stages]
    return misfit(owners, operations, kernel.loose, keystr(updates, i), named, error)


def run_matrices(
    kernel: LeafKernel, updates: Updates, rows: dict[int, list], previous: Any
) -> tuple[list[tuple], Any]:
    """`run_leaf` for many leaves: an accelerator computes equal matrices at once.

    A CPU computes one leaf after the other. There, with 48 matrices of 256 x 256, a step
    of Muon in batches was a tenth slower, took twice as long to compile (each slice at
    another position is another kernel), and used three times the memory.
    """
    found = [stage.operation.equation for stage in kernel.stages]
    batching = common_batching([x.batching for x in found if x.batching is not None])
    keys = _batch_keys(kernel, rows)
    # What is as small as one batch need not wait: tracing it for accelerators, too, would
    # take twice as long. In a `shard_map`, JAX 0.10 would take all results for varying if
    # one of them is.
    limits = batching.limits
    is_large = sum(row[0].size for row in rows.values()) > limits["default"]
    may_wait = is_large and len(rows) > 1 and not is_in_shard_map()
    turns = batching.turns if may_wait else frozenset()
    has_equal = any(map(_has_equal, zip(*keys, strict=True)))
    if not (batching.is_divided or turns or has_equal):
        outs = []
        for i, row in rows.items():
            out, previous = run_leaf(kernel, updates, i, row, previous)
            outs.append(out)
        return outs, previous
    arrays, treedef, order = _distinct((kernel.packed, [*rows.values()]))

    def on_cpu(previous, *arrays):
        packed, some = treedef.unflatten(arrays[k] for k in order)
        own, outs = kernel._replace(packed=packed), []
        for i, row in zip(rows, some, strict=True):
            out, previous = run_leaf(own, updates, i, row, previous, True)
            outs.append(out)
        return outs

    def in_batches(platform, limit):
        groups = [[*range(len(rows))]]
        # If other kernels read the results, XLA for a TPU moves less without turns.
        if platform in turns and not (platform == "tpu" and kernel.is_read_later):
            groups = _groups(keys, rows, limit)

        def run(previous, *arrays):
            packed, some = treedef.unflatten(arrays[k] for k in order)
            own = kernel._replace(packed=packed)
            return _one_after_another(own, some, groups, limit, batching.numbers_wait)

        return run

    others = {platform: in_batches(platform, x) for platform, x in limits.items()}
    if not batching.is_divided:
        others["cpu"] = on_cpu
    try:
        outs = lax.platform_dependent(previous, *arrays, **others)
    except (ShapeMismatch, TypeCheckError):
        for i, row in rows.items():  # one by one, its error names the leaf
            run_leaf(kernel, updates, i, row, previous)
        raise
    return outs, _last_computed(outs[-1])


def _batch_keys(kernel: LeafKernel, rows: dict[int, list]) -> list[tuple]:
    """The `Equation.batch_key` of each equation of matrices, for each row."""
    found = []
    for stage in kernel.stages:
        equation, columns = stage.operation.equation, stage.columns
        if not equation.is_of_matrices:
            continue
        keys = []
        for i, row in rows.items():
            own = [columns[x][i] if x in columns else row[1] for x in equation.leaves]
            keys.append(equation.batch_key(row[0], *own))
        found.append(keys)
    return [*zip(*found, strict=True)]


def _has_equal(keys: tuple) -> bool:
    """Whether two leaves have matrices that can be in one batch."""
    found = [key for key in keys if key is not None]
    return len({*found}) < len(found)


def _groups(keys: list[tuple], rows: dict[int, list], limit: int) -> list[list[int]]:
    """The positions of the rows in each batch. A row without a batch is alone."""
    own = [key if any(key) else i for i, key in enumerate(keys)]
    return [*batches(own, [row[0].size for row in rows.values()], limit)]


def _distinct(tree: PyTree) -> tuple[list[Array], Any, tuple[int, ...]]:
    """The arrays of a tree without repetition, its structure, and their order in it.

    Each array that leaves share is passed once: batches are found by its identity.
    """
    flat, treedef = jax.tree.flatten(tree)
    arrays = {id(x): x for x in flat}
    places = {key: i for i, key in enumerate(arrays)}
    return [*arrays.values()], treedef, tuple(places[id(x)] for x in flat)


def _one_after_another(
    kernel: LeafKernel,
    rows: list[list],
    groups: list[list[int]],
    limit: int,
    numbers_wait: bool,
) -> list[tuple]:
    """The results for all rows. Each group of rows waits for the results of the last one.

    Otherwise, XLA keeps what all groups compute until the end. With 48 matrices of up to
    4096 x 1024, compiled for an H100, Shampoo takes 1.8 sizes of the parameters in
    temporary memory instead of 6.1; compiled for a TPU v5e, PSGDKron takes 1.1 instead
    of 3.5.

    With `numbers_wait`, the numbers that all groups share wait, too. Otherwise, XLA would
    compute with them for all groups at once, and lay out these groups alike.
    """
    packed, times = kernel.packed, collections.Counter(map(id, jax.tree.leaves(rows)))
    outs: dict[int, tuple] = {}
    last: list[int] = []
    for group in groups:
        own = [rows[i] for i in group]
        if last:
            # Parameters and slots wait, too: otherwise, XLA transposes some of them at
            # the start. What rows share must stay the same, or they are in no batch.
            own, shared = eqx.partition(own, lambda x: x.ndim and times[id(x)] == 1)
            numbers = packed if numbers_wait else None
            done, own, numbers = lax.optimization_barrier(
                ([outs[i] for i in last], own, numbers)
            )
            own, packed = eqx.combine(own, shared), numbers if numbers_wait else packed
            if not kernel.is_read_later:  # other kernels are fused with these
                outs.update(zip(last, done, strict=True))
        arrays, treedef, order = _distinct((packed, own))
        of_all = kernel_of_all(*kernel.program, treedef, order, limit)
        outs.update(zip(group, of_all(*arrays), strict=True))
        last = group
    return [outs[i] for i in range(len(rows))]
