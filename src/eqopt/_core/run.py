"""Runs the kernel of each leaf, in an order that saves memory, and reports misfits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import TypeCheckError

from .._cpu.order import after, alone, loaded_after, runs_alone, takes_turn
from .._trees.leaves import keystr
from .._trees.stored import has_stored
from .._types import State, Updates
from .batches import BATCH
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
    equations = [stage.operation.equation for stage in kernel.stages]
    is_divided = any(equation.division is not None for equation in equations)
    if not (is_divided or _has_equal(kernel, rows)):
        outs = []
        for i, row in rows.items():
            out, previous = run_leaf(kernel, updates, i, row, previous)
            outs.append(out)
        return outs, previous
    flat, treedef = jax.tree.flatten((kernel.packed, [*rows.values()]))
    # Each array that leaves share is passed once: batches are found by its identity.
    arrays = {id(x): x for x in flat}
    places = {key: i for i, key in enumerate(arrays)}
    order = tuple(places[id(x)] for x in flat)

    def on_cpu(previous, *arrays):
        packed, some = treedef.unflatten(arrays[k] for k in order)
        own, outs = kernel._replace(packed=packed), []
        for i, row in zip(rows, some, strict=True):
            out, previous = run_leaf(own, updates, i, row, previous, True)
            outs.append(out)
        return outs

    def in_batches(limit):
        of_all = kernel_of_all(*kernel.program, treedef, order, limit)
        return lambda previous, *arrays: of_all(*arrays)

    others = {platform: in_batches(limit) for platform, limit in BATCH.items()}
    if not is_divided:
        others["cpu"] = on_cpu
    outs = lax.platform_dependent(previous, *arrays.values(), **others)
    return outs, _last_computed(outs[-1])


def _has_equal(kernel: LeafKernel, rows: dict[int, list]) -> bool:
    """Whether an equation has two leaves with matrices that can be in one batch."""
    for stage in kernel.stages:
        equation, columns = stage.operation.equation, stage.columns
        if not equation.is_of_matrices:
            continue
        found = []
        for i, row in rows.items():
            own = [columns[x][i] if x in columns else row[1] for x in equation.leaves]
            batch_key = equation.batch_key(row[0], *own)
            if batch_key is not None:
                found.append(batch_key)
        if len({*found}) < len(found):
            return True
    return False
