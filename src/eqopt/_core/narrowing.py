"""How a kernel stores new values: like the old ones, in one or in two passes."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array

from .._cpu.order import computed_once
from .._jax_internals import Literal, attempt, equations
from .._trees.sharding import has_explicit_axes
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
    u = u.astype(like.dtype)
    if not getattr(like, "weak_type", False):
        return u
    # A parameter such as `jnp.array(1.0)` stays so, or the second step compiles again.
    # JAX makes only scalars weakly typed.
    weakly = jnp.full_like
    for _ in range(u.ndim):
        weakly = jax.vmap(weakly)
    return weakly(like, u)


# Equations that take longer than to read their arguments once more.
_SLOW = ("reduce", "dot_general", "conv_", "cum", "sort", "while", "scan", "random")

_BY_POSITION = (
    *("iota", "gather", "scatter", "dynamic", "slice", "concatenate", "pad"),
    *("rev", "transpose", "squeeze", "split"),
)

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
    steps = _elementwise_steps(run, packed, *row) if is_large else None
    if steps is None:
        return run(packed, *row)
    # A mesh with explicit axes does not reshape an axis that it divides.
    blocks = None if has_explicit_axes(row) else _blocks_of(leaves)

    def like(new):
        """`new`, unless the equations would do something else in that order."""
        if not blocks or not new:
            return None
        moved = jax.eval_shape(lambda *row: _with(row, blocks, new), *row)
        return new if _elementwise_steps(run, packed, *moved) == steps else None

    def in_order(new):
        return lambda packed, *row: _passes(run, packed, row, blocks, new)

    # With an axis of blocks, a GPU computes fewer indices.
    branches = {"cuda": in_order(like(blocks and blocks.of_equal_blocks))}
    is_for_tpu = sum(sizes) >= _LARGE_ON_TPU
    if tiles := like(_tiles(blocks)) if is_for_tpu else None:
        branches["tpu"] = in_order(tiles)
    return lax.platform_dependent(packed, *row, **branches, default=run)


def _elementwise_steps(run, packed, *row):
    """What the equations do to each element, and with which numbers.

    It is `None` if they do more, if they depend on positions, or if they fail. Equations
    that look at shapes do something else to an array with other axes.
    """
    values = lambda *arguments: run(*arguments, keep=lambda new, slot, after: new)
    loaded = lambda x: x.like if is_stored(x) else x
    try:
        row = jax.tree.map(loaded, row, is_leaf=is_stored)
        program = jax.make_jaxpr(values)(packed, *row)
    except Exception:  # for the shapes of users, it occurs again
        return None
    is_large = lambda x: math.prod(getattr(x.aval, "shape", ())) > packed.size

    def read():
        steps = []
        for eqn in equations(program):
            name = eqn.primitive.name
            # Not the vector of shared values, which is taken apart.
            is_of_leaf = any(map(is_large, [*eqn.invars, *eqn.outvars]))
            is_spread = name == "broadcast_in_dim" and getattr(
                eqn.invars[0].aval, "ndim", 0
            )
            by_position = is_spread or name.startswith(_BY_POSITION)
            if name.startswith(_SLOW) or (is_of_leaf and by_position):
                return None
            numbers = [np.asarray(x.val) for x in eqn.invars if isinstance(x, Literal)]
            steps.append((name, [x.tolist() for x in numbers]))
        consts = [np.asarray(x) for x in program.consts]
        is_number = all(x.ndim == 0 for x in consts)
        return (steps, [x.tolist() for x in consts]) if is_number else None

    return attempt(read, lambda: None)


def _tiles(blocks):
    """The blocks in the tiles of a TPU, if each device has whole tiles."""
    if not blocks:
        return None
    here = jax.sharding.get_abstract_mesh()
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
