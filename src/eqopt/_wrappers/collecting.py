"""Gradients that are collected over several calls, of which some have `None`."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._core import AbstractTransformation, Call
from .._trees.control import filter_cond
from .._trees.leaves import is_leaf, restrict
from .._trees.stored import is_stored, load
from .._types import PyTree, State, Updates
from ..tree._like import zero_updates
from ..tree._slots import owners_of


def fill_missing(updates: Updates, collected: Updates) -> Updates:
    """Puts zeros where an update is `None`, but something may have been collected."""
    if all(g is not None for g in jtu.tree_leaves(updates, is_leaf=is_leaf)):
        return updates
    return eqx.combine(updates, zero_updates(load(collected)))


def run_collected(
    call: Call, inner: AbstractTransformation, state: State, collected: Updates
) -> tuple[Any, State]:
    """Calls `inner` with what several calls have collected, of which this is the last.

    Where this call has `None`, `step` uses what earlier ones have collected. If all of
    that is zero, the parameter and its state stay unchanged, as without accumulation.
    The result of `update` has `None` there, like the updates of this call.
    """
    here = restrict(collected, call.updates, "state")
    without = lambda: call._replace(updates=here).run(inner, state)
    columns = (jtu.tree_leaves(x, is_leaf=is_leaf) for x in (here, collected))
    pairs = zip(*columns, strict=True)
    # Whether a leaf moves, by its position, if this call has `None` there.
    moves = {i: jnp.any(x != 0) for i, (g, x) in enumerate(pairs) if g is not x}
    if not (call.is_step and moves):
        return without()

    def within() -> tuple[Any, State]:
        params, new = call._replace(updates=collected).run(inner, state)
        positions = range(len(jtu.tree_leaves(params, is_leaf=is_leaf)))
        owners = owners_of(call.params, state)
        return (
            _take_back(params, call.params, is_leaf, positions, moves),
            _take_back(new, state, is_stored, owners, moves),
        )

    return filter_cond(jnp.any(jnp.stack([*moves.values()])), within, without)


def _take_back(
    new: PyTree,
    old: PyTree,
    is_leaf: Callable[[Any], bool],
    owners: Iterable[int | None],
    moves: Mapping[int, Array],
) -> PyTree:
    """Undoes the changes at leaves that belong to a parameter that does not move.

    `owners`: the position of the parameter to which each leaf belongs.
    """
    leaves, treedef = jtu.tree_flatten(new, is_leaf=is_leaf)
    before = jtu.tree_leaves(old, is_leaf=is_leaf)
    for i, owner in enumerate(owners):
        if owner is not None and owner in moves:
            choose = functools.partial(jnp.where, moves[owner])
            leaves[i] = jax.tree.map(choose, leaves[i], before[i])
    return treedef.unflatten(leaves)
