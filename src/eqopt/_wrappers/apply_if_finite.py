"""Skips steps with gradients that are not finite."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._arguments.extra import given_norm
from .._core import AbstractTransformation, AbstractWrapper, Call
from .._trees.control import filter_cond
from .._trees.leaves import flatten_updates
from .._types import CountOrZero, Params, State, Updates
from ..numerics._numerics import safe_increment


class ApplyIfFiniteState(eqx.Module):
    """The counts of skipped steps.

    **Attributes:**

    - `notfinite_count`: the number of consecutive gradients, up to the last one, that
        were not finite; a 0-d int32 array. It does not exceed
        `max_consecutive_errors + 1`. It reaches this value when a step is applied
        although its gradients are not finite.
    - `last_finite`: whether the last gradients were finite, a 0-d bool array.
    - `total_notfinite`: the number of gradients that were not finite, a 0-d int32
        array.
    - `inner_state`: the inner state.
    """

    notfinite_count: Int[Array, ""]
    last_finite: Bool[Array, ""]
    total_notfinite: Int[Array, ""]
    inner_state: State


class ApplyIfFinite(AbstractWrapper):
    """Skips every step with a NaN or an infinity in its gradients.

    In a skipped step, the updates are zero and the inner state stays unchanged. After
    `max_consecutive_errors` skipped steps in a row, it gives up and applies all
    gradients until they are finite again. If `step` gets the extra argument
    `grad_norm` and it is finite, the gradients are not read.

    **Arguments:**

    - `inner`: the transformation.
    - `max_consecutive_errors`: the largest number of consecutive steps to skip, an
        integer of at least 0.

    **Raises:**

    A `ValueError` if `max_consecutive_errors` is negative or not an integer.
    """

    inner: AbstractTransformation
    max_consecutive_errors: CountOrZero

    def init(self, params: Params) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(
            notfinite_count=jnp.zeros((), jnp.int32),
            last_finite=jnp.ones((), bool),
            total_notfinite=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
        )

    def handle(
        self, call: Call, state: ApplyIfFiniteState
    ) -> tuple[Any, ApplyIfFiniteState]:
        finite = are_finite(self, call)
        limit = jnp.asarray(self.max_consecutive_errors, jnp.int32)
        in_a_row = jnp.where(
            finite, 0, safe_increment(jnp.minimum(state.notfinite_count, limit))
        ).astype(jnp.int32)
        total = state.total_notfinite
        applies = finite | (in_a_row > limit)
        result, inner_state = call.run_if(applies, self.inner, state.inner_state)
        return result, ApplyIfFiniteState(
            notfinite_count=in_a_row,
            last_finite=finite,
            total_notfinite=jnp.where(finite, total, safe_increment(total)),
            inner_state=inner_state,
        )


def are_finite(owner: object, call: Call) -> Bool[Array, ""]:
    """Whether all updates of a call are finite, by `grad_norm` if that is enough."""
    length = given_norm(owner, call.extra)
    if length is None:
        return all_finite(call.updates)
    # The norm of large gradients overflows, although they are finite.
    return filter_cond(
        ~jnp.isfinite(length),
        lambda: all_finite(call.updates),
        lambda: jnp.ones((), bool),
    )


def all_finite(updates: Updates) -> Bool[Array, ""]:
    leaves = [leaf for leaf in flatten_updates(updates)[0] if leaf is not None]
    if not leaves:
        return jnp.ones((), bool)
    return jnp.all(jnp.stack([_is_finite(leaf) for leaf in leaves]))


@jax.jit
def _is_finite(x):
    # A value that is not finite, minus itself, is NaN, and so is any sum that contains
    # it. On a CPU, this is three times faster than `all(isfinite(x))`, because a
    # reduction of bools is slow. Unlike `sum(x * 0)`, it creates no temporary array.
    return jnp.isfinite(jnp.sum(x - x))
