"""Copies of the parameters in a state, such as slow weights and averages."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._core import AbstractTransformation, Equation, equation, leafwise, stateless
from ..._errors import InputError
from ..._trees.keys import keep_keys
from ..._trees.leaves import (
    align,
    briefly,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    restrict,
)
from ..._trees.stored import load, store_like
from ..._types import IntegerLike, Params, State, Updates


def count_step(steps_since_sync: Int[Array, ""], period: IntegerLike):
    """Whether a slow step follows, and then the number of steps since the last one."""
    count = steps_since_sync + 1
    due = count >= jnp.asarray(period, jnp.int32)
    return due, jnp.where(due, 0, count).astype(jnp.int32)


@equation(elementwise=True)
def take_slow(p, slow):
    return slow


def take_slow_params(state: Any, params: Params) -> Params:
    """The model with the slow parameters, the field `slow` of the state."""
    return replace_params(state, params, take_slow, "slow")


def replace_params(state, params, equation: Equation, slot, **shared) -> Params:
    """Replaces `params` by an equation of them and of `slot`, a field of the state."""
    tree = getattr(state, slot)
    here = match_params(slot, tree, params)
    new = leafwise(equation, here, reads={slot: tree}, **shared)
    return eqx.combine(new, params, is_leaf=is_leaf)


def match_params(slot: str, tree: Params, params: Params) -> Params:
    """The parameters that have a value in `tree`, a field of the state."""
    part = restrict(params, tree, like_name=f"state.{slot}")
    leaves, treedef = flatten_updates(tree)
    for i, (x, p) in enumerate(zip(leaves, treedef.flatten_up_to(part), strict=True)):
        found = f"shape {p.shape}" if is_parameter(p) else briefly(p)
        if x is not None and found != f"shape {x.shape}":
            raise InputError(
                f"`params` has {found} at `{keystr(tree, i)}`, but `state.{slot}` has "
                f"shape {x.shape}. Pass the state and the parameters that the last "
                "`step` returned, of one worker."
            )
    return part


def check_kept(slot: str, tree: Params, updates: Updates) -> None:
    """Raises an error for an update where `tree`, a field of the state, has `None`.

    Without an equation that reads the field, its leaf would be taken as not trained.
    """
    leaves, treedef = flatten_updates(updates)
    column = align(treedef, tree, f"state.{slot}", updates)
    for i, (g, x) in enumerate(zip(leaves, column, strict=True)):
        if g is not None and x is None:
            raise stateless(slot, keystr(updates, i))


def restart(inner: AbstractTransformation, state: State, params: Params) -> State:
    """The state of `inner` at new parameters, with the old random keys."""
    return keep_keys(store_like(state, load(inner.init(params))), state)
