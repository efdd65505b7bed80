"""Code for a single platform, where XLA would otherwise move or keep more memory.

Each function returns what it is given, or computes what it is asked to compute, on all
platforms. `benchmarks/accelerators` compiles steps for an H100 and a TPU v5e, and counts
the memory that they move and keep. Figures are in sizes of the parameters.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from ._jax_internals import is_traced, row_major
from ._trees.sharding import has_explicit_axes, is_in_shard_map
from ._trees.stored import Joined, is_leaf, is_stored
from ._types import PyTree


_Tree = TypeVar("_Tree")


#
# CPU: the compilation of sums over many leaves
#


def compute_once(x: Array) -> Array:
    """`x`, which a CPU computes once, not once per reader.

    XLA merges the sum over all leaves into each of its readers. With this, the
    compilation of clipping n leaves by their norm takes time n, not n^2.
    """
    # Inside `shard_map` with JAX 0.10, all would vary between devices if one does.
    return _compute_once(x) if is_traced(x) and not is_in_shard_map() else x


@jax.jit
def _compute_once(x: Array) -> Array:
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


#
# GPU: sums in a pass of their own
#


def read_apart(tree: _Tree) -> _Tree:
    """`tree`; XLA for a GPU does not merge what reads it with other readers.

    It can compute sums and new moments in one pass, but then it stores some of the
    moments in temporary memory, and copies them.
    """
    leaves, treedef = jax.tree.flatten(tree)
    barrier = lambda *leaves: lax.optimization_barrier(leaves)
    same = lambda *leaves: leaves
    return treedef.unflatten(
        lax.platform_dependent(*leaves, cuda=barrier, default=same)
    )


#
# TPU: new values one after the other
#

# Smaller arrays stay in the fast memory of a TPU.
_WAITING = 2**16


def store_in_turn(
    params: PyTree, state: PyTree, updates: PyTree, owners: Sequence[int | None]
) -> PyTree:
    """`state`, whose slots a TPU stores after the new parameters, one after the other.

    `owners`: for each leaf of `state`, the position of its parameter.

    XLA for a TPU copies a donated array if one result needs its old value and the new
    value of another array: it computes them in two passes. It computes a chain of values
    in one pass. So each new slot that is shaped like its parameter waits for the
    parameter, or for the slot before it. A step of GPA moves 9 instead of 12, of Mechanic
    11 instead of 15, of ACProp and Adadelta 7 instead of 9. Steps that take several
    passes, as in LAMB and Muon, would move more.
    """
    is_large = lambda g: g is not None and g.size >= _WAITING
    grads, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    large = [g for g in grads if is_large(g)]
    if not any(map(is_traced, large)) or is_in_shard_map() or has_explicit_axes(large):
        return state
    last = treedef.flatten_up_to(params)
    leaves, whole = jtu.tree_flatten(state, is_leaf=is_stored)
    for k, i in enumerate(owners):
        if i is not None and is_large(grads[i]) and _can_wait(leaves[k], last[i]):
            leaves[k] = last[i] = _after(leaves[k], last[i])
    return whole.unflatten(leaves)


def _can_wait(x: Any, first: Any) -> bool:
    is_array = isinstance(x, jax.Array) and isinstance(first, jax.Array)
    return is_array and x.shape == first.shape and jnp.issubdtype(x.dtype, jnp.inexact)


@jax.jit
def _after(x: Array, first: Array) -> Array:
    # No number is less than minus infinity, but XLA does not know this.
    wait = lambda x, first: jnp.where(first.real < -jnp.inf, jnp.zeros_like(x), x)
    return lax.platform_dependent(x, first, tpu=wait, default=lambda x, first: x)


#
# GPU and TPU: arrays that are written over in parts
#


def read_slices(slices: Sequence[Array]) -> Sequence[Array]:
    """`slices` of arrays, which the same iteration of a loop writes over.

    XLA for a TPU would read some of them only then, from copies of the whole arrays: with
    four matrices of 2048 x 2048 on each device, PSGDKron would move 50 instead of 35. XLA
    for a GPU would transpose whole arrays before the loop if a product is faster that
    way: with eight matrices of 1024 x 1024 on each device, KLShampoo would keep 6.0
    instead of 2.3.
    """
    at_once = lambda *slices: lax.optimization_barrier(slices)
    in_rows = lambda *slices: tuple(map(row_major, slices))
    return lax.platform_dependent(*slices, tpu=at_once, default=in_rows)


#
# GPU and TPU: slots that are stored in blocks
#

# The arrays of smaller leaves stay in the cache of a GPU. The new slots of a leaf with
# fewer elements together stay in the fast memory of a TPU.
_LARGE = 2**16
_LARGE_ON_TPU = 2**21

# How many devices may share the rows of a leaf, at least. If they cannot share its tiles
# evenly, XLA gathers it. A program does not see how arrays are placed on automatic axes.
_DEVICES = 16


def store_in_two_passes(
    compute: Callable, values: PyTree, row: PyTree, store: Callable
) -> tuple:
    """`compute(values, row, store)`, the results of an elementwise equation.

    Some slots are stored only after all new values of a block have been measured: the
    largest one is the unit of their codes. For this, XLA for a GPU or a TPU writes the
    new values to memory, and reads them again. It takes less time to evaluate the
    equation twice: the first pass measures the new values, and the second stores them.
    """
    leaves = jax.tree.leaves(row, is_leaf=is_stored)
    sizes = [x.size for x in leaves if _is_measured(x)]
    plain = lambda values, row: compute(values, row, store)
    if not sizes or max(sizes) < _LARGE:
        return plain(values, row)
    # A mesh with explicit axes does not reshape an axis that it divides.
    blocks = None if has_explicit_axes(row) else _blocks_of(leaves)

    def in_order(new):
        return lambda values, row: _passes(compute, values, row, store, blocks, new)

    # With an axis of blocks, a GPU computes fewer indices.
    branches = {"cuda": in_order(blocks and blocks.of_equal_blocks)}
    tiles = _tiles(blocks) if sum(sizes) >= _LARGE_ON_TPU else None
    if tiles:
        branches["tpu"] = in_order(tiles)
    return lax.platform_dependent(values, row, **branches, default=plain)


def _tiles(blocks):
    """The blocks in the tiles of a TPU, if each device has whole tiles."""
    if not blocks:
        return None
    here = jax.sharding.get_abstract_mesh()
    return blocks.in_tiles(math.lcm(_DEVICES, max(1, here.size)))


def _passes(compute, values, row, store, old, new):
    """Both passes, in which arrays have the shape and the order of `new`, if any."""
    _, *measured = compute(values, _with(row, old, new), _measure)
    # Without the barrier, XLA would merge both passes into one.
    measured, row = lax.optimization_barrier((measured, row))
    found = iter(jax.tree.leaves(measured))

    def keep(x, slot):
        if _is_measured(slot):
            return slot.store_measured(lax.stop_gradient(x), next(found))
        return store(x, slot)

    return _with(compute(values, _with(row, old, new), keep), new, old)


def _measure(x, slot):
    return slot.measure(lax.stop_gradient(x)) if _is_measured(slot) else None


def _is_measured(slot):
    return is_stored(slot) and slot._is_measured


def _blocks_of(leaves):
    """The blocks of all leaves, if they are the same.

    Other storages may depend on the positions of elements, as random rounding does.
    """
    first, *others = {x.blocks for x in leaves if _is_measured(x)}
    is_alike = all(x.shape == first.shape or not x.ndim for x in leaves)
    others += [x for x in leaves if is_stored(x) and not _is_by_element(x)]
    return first if is_alike and first.shape and not others else None


def _is_by_element(x):
    return _is_measured(x) or (isinstance(x, Joined) and x.hidden._is_by_element)


def _with(tree, old, new):
    """`tree`; arrays that are arranged like `old` are arranged like `new` instead."""
    if not old or not new:
        return tree

    def moved(x):
        if _is_measured(x):
            return x.in_blocks(new)
        return new.arranged(old.natural(x)) if x.shape == old.shape else x

    return jax.tree.map(moved, tree, is_leaf=_is_measured)
