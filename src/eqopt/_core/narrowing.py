"""How a kernel stores new values: like the old ones, in one or in two passes."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._cpu.order import computed_once
from .._jax_internals import attempt, equations
from .._trees.stored import Joined, is_leaf, is_stored
from .._types import Updates
from .equation import ShapeMismatch


def narrow(u: Array, like: Any, after: Any = None) -> Any:
    """`u`, stored like `like`. On a CPU, it waits for `after`, which saves memory."""
    if jnp.iscomplexobj(u) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        raise ShapeMismatch("a complex value for a real slot")
    if is_stored(like):
        u = u if like._is_differentiable else lax.stop_gradient(u)
        return computed_once(type(like).store, like, u, after)
    return u.astype(like.dtype)


# Equations that take longer than to read their arguments once more.
_SLOW = ("reduce", "dot_general", "conv_", "cum", "sort", "while", "scan", "random")

# The arrays of smaller leaves stay in the cache of a GPU. The new slots of a leaf with
# fewer elements together stay in the fast memory of a TPU.
_LARGE = 2**16
_LARGE_ON_TPU = 2**21

# How many devices may share the rows of a leaf, at least. If they cannot share its tiles
# evenly, XLA gathers it. A program does not see how arrays are placed on automatic axes.
_DEVICES = 16


def in_two_passes(run: Callable, packed: Array, *row: Any) -> tuple[Any, list]:
    """`run(packed, *row)`, the result of a kernel and its new slots.

    Some slots are stored only after all new values of a block have been measured: the
    largest one is the unit of their codes. For this, XLA for a GPU or a TPU writes the
    new values to memory, and reads them again. It takes less time to evaluate elementwise
    equations twice: the first pass measures the new values, and the second stores them.

    `run(packed, *row, keep=keep)` is the same with `keep(new, slot, after)` instead of
    `narrow`.
    """
    leaves = jax.tree.leaves(row, is_leaf=is_stored)
    sizes = [x.size for x in leaves if _is_measured(x)]
    is_large = bool(sizes) and max(sizes) >= _LARGE
    if not is_large or not _is_elementwise(run, packed, *row):
        return run(packed, *row)
    blocks = _blocks_of(leaves)

    def in_order(new):
        return lambda packed, *row: _passes(run, packed, row, blocks, new)

    # With an axis of blocks, a GPU computes fewer indices.
    branches = {"cuda": in_order(blocks and blocks.of_equal_blocks)}
    tiles = _tiles(blocks, row) if sum(sizes) >= _LARGE_ON_TPU else None
    if tiles:
        branches["tpu"] = in_order(tiles)
    return lax.platform_dependent(packed, *row, **branches, default=run)


def _is_elementwise(run, *arguments):
    values = lambda *arguments: run(*arguments, keep=lambda new, slot, after: new)
    program = jax.make_jaxpr(values)(*arguments)
    is_slow = lambda eqn: eqn.primitive.name.startswith(_SLOW)
    return attempt(lambda: not any(map(is_slow, equations(program))), lambda: False)


def _tiles(blocks, row):
    """The blocks in the tiles of a TPU, if each device has whole tiles."""
    here = jax.sharding.get_abstract_mesh()
    meshes = [here, *(jax.typeof(x).sharding.mesh for x in jax.tree.leaves(row))]
    if not blocks or any(mesh.explicit_axes for mesh in meshes):
        return None
    return blocks.in_tiles(math.lcm(_DEVICES, max(1, here.size)))


def _passes(run, packed, row, old, new):
    """Both passes, in which arrays have the shape and the order of `new`, if any."""
    _, measured = run(packed, *_with(row, old, new), keep=_measure)
    # Without the barrier, XLA would merge both passes into one.
    measured, row = lax.optimization_barrier((measured, row))
    found = iter(jax.tree.leaves(measured))

    def keep(new, slot, after):
        if _is_measured(slot):
            return slot.store_measured(lax.stop_gradient(new), next(found))
        return narrow(new, slot, after)

    return _with(run(packed, *_with(row, old, new), keep=keep), new, old)


def _measure(new, slot, after):
    return slot.measure(lax.stop_gradient(new)) if _is_measured(slot) else None


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


def _rounded(u: Any, like: Any) -> Any:
    return u if u is None or u.dtype == like.dtype else u.astype(like.dtype)


def as_given(updates: Updates, given: Updates) -> Updates:
    """`updates` in the dtypes of `given`, if both have the same structure.

    They have different structures for `LookaheadParams`.
    """
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    likes, structure = jtu.tree_flatten(given, is_leaf=is_leaf)
    if treedef != structure:
        return updates
    return treedef.unflatten(map(_rounded, leaves, likes))
