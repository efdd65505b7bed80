"""How a kernel stores new values: like the old ones, in one or in two passes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._cpu.order import computed_once
from .._jax_internals import attempt, equations
from .._trees.stored import is_leaf, is_stored
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

# The arrays of smaller leaves stay in the cache of a GPU.
_LARGE = 2**16


def in_two_passes(run: Callable, *arguments: Any) -> tuple[Any, list]:
    """`run(*arguments)`, the result of a kernel and its new slots.

    Some slots are stored only after all new values of a block have been measured: the
    largest one is the unit of their codes. For this, XLA for a GPU writes the new values
    to memory, and reads them again. It takes less time to evaluate elementwise equations
    twice: the first pass measures the new values, and the second stores them.

    `run(*arguments, keep=keep)` is the same with `keep(new, slot, after)` instead of
    `narrow`.
    """
    stored = filter(is_stored, jax.tree.leaves(arguments, is_leaf=is_stored))
    if not any(x._is_measured and x.size >= _LARGE for x in stored):
        return run(*arguments)
    in_two = lambda *arguments: _in_two(run, *arguments)
    return lax.platform_dependent(*arguments, cuda=in_two, default=run)


def _in_two(run, *arguments):
    values = lambda *arguments: run(*arguments, keep=lambda new, slot, after: new)
    program = jax.make_jaxpr(values)(*arguments)
    is_slow = lambda eqn: eqn.primitive.name.startswith(_SLOW)
    if attempt(lambda: any(map(is_slow, equations(program))), lambda: True):
        return run(*arguments)
    packed, *row = arguments
    found = _blocks_of(row)
    if found is None:
        return _passes(run, packed, row)
    row = _with(row, found, found.of_equal_blocks)
    return _with(_passes(run, packed, row), found.of_equal_blocks, found)


def _passes(run, packed, row):
    _, measured = run(packed, *row, keep=_measure)
    # Without the barrier, XLA would merge both passes into one.
    measured, row = lax.optimization_barrier((measured, row))
    found = iter(jax.tree.leaves(measured))

    def keep(new, slot, after):
        if _is_measured(slot):
            return slot.store_measured(lax.stop_gradient(new), next(found))
        return narrow(new, slot, after)

    return run(packed, *row, keep=keep)


def _measure(new, slot, after):
    return slot.measure(lax.stop_gradient(new)) if _is_measured(slot) else None


def _is_measured(slot):
    return is_stored(slot) and slot._is_measured


def _blocks_of(row):
    """The blocks of all arguments, if each of them can have an axis of blocks.

    With it, a GPU computes fewer indices.
    """
    leaves = jax.tree.leaves(row, is_leaf=is_stored)
    first, *others = {x.blocks for x in leaves if _is_measured(x)}
    is_alike = all(x.shape == first.shape or not x.ndim for x in leaves)
    is_possible = is_alike and first.shape and not others and first.of_equal_blocks
    return first if is_possible else None


def _with(tree, old, new):
    """`tree`, whose arrays have the shape of `old`, with the shape of `new`."""
    of_array = lambda x: x.reshape(new.shape) if x.shape == old.shape else x

    def reshaped(x):
        return x.in_blocks(new) if _is_measured(x) else jax.tree.map(of_array, x)

    return jax.tree.map(reshaped, tree, is_leaf=is_stored)


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
