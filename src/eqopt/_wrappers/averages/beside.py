"""Moves an average towards the parameters, and replaces the parameters by it."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..._core import Call, Equation, equation, leafwise, stateless
from ..._errors import InputError
from ..._trees.leaves import (
    align,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    restrict,
)
from ..._types import IntegerLike, Params, Scalar, Updates


@equation(elementwise=True)
def follow(p, average, *, weight):
    # The first value becomes the average itself, without the rounding of a difference.
    moved = average + weight * (p - average)
    return p, jnp.where(weight == 1, p, moved)


@equation(elementwise=True)
def follow_updated(g, average, p, *, weight):
    return g, follow(p + g, average, weight=weight)[1]


@equation(elementwise=True)
def choose(p, average, *, weight_sum):
    return jnp.where(weight_sum == 0, p, average)


def move_average(call: Call, result: Any, average: Params, weight: Scalar) -> Params:
    """Moves `average` towards the parameters after a call with this result.

    Where the call has no update, the average stays unchanged.
    """
    if call.is_step:
        here = restrict(result, call.updates)
        _, average = leafwise(follow, here, average, weight=weight)
    else:
        reads = {"p": call.params}
        _, average = leafwise(
            follow_updated, result, average, reads=reads, weight=weight
        )
    return average


def synced(
    steps_since_sync: Int[Array, ""], period: IntegerLike
) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether a slow step follows, and then the number of steps since the last one."""
    count = steps_since_sync + 1
    due = count >= jnp.asarray(period, jnp.int32)
    return due, jnp.where(due, 0, count).astype(jnp.int32)


def averaged_or(params: Params, state: Any, weight_sum: Array) -> Params:
    """`params` replaced by the average, unless the average has no weight yet."""
    return put_beside(state, params, choose, "average", weight_sum=weight_sum)


def put_beside(
    state: Any, params: Params, equation: Equation, slot: str, **shared: Any
) -> Params:
    """Replaces `params` by an equation of them and of `slot`, a field of the state."""
    owner, tree = type(state).__name__.removesuffix("State"), getattr(state, slot)
    here = beside(owner, slot, tree, params)
    new = leafwise(equation, here, reads={slot: tree}, **shared)
    return eqx.combine(new, params, is_leaf=is_leaf)


def beside(owner: str, slot: str, tree: Params, params: Params) -> Params:
    """The parameters that have a value in `tree`, a field of the state.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ.
    """
    part = restrict(params, tree, like_name=f"state.{slot}")
    leaves, treedef = flatten_updates(tree)
    for i, (x, p) in enumerate(zip(leaves, treedef.flatten_up_to(part), strict=True)):
        if x is None or (is_parameter(p) and p.shape == x.shape):
            continue
        found, advice = f"{p!r}", "parameters that the last `step` returned"
        if is_parameter(p):
            found = f"an array of shape {p.shape}"
            if p.shape[1:] == x.shape:
                advice = (
                    "parameters of one worker: `jax.tree.map(lambda x: x[0], params)`"
                )
        raise InputError(
            owner,
            f"`state.{slot}` has an array of shape {x.shape} at "
            f"`{keystr(tree, i)}`, but `params` has {found}. Pass the state and the "
            f"{advice}.",
        )
    return part


def check_kept(slot: str, tree: Params, updates: Updates) -> None:
    """Raises a `ValueError` for an update where `tree`, a field of the state, has `None`.

    Without an equation that reads the field, its leaf would be taken as not trained.
    """
    leaves, treedef = flatten_updates(updates)
    column = align(treedef, tree, f"state.{slot}", updates)
    for i, (g, x) in enumerate(zip(leaves, column, strict=True)):
        if g is not None and x is None:
            raise stateless(slot, keystr(updates, i))
