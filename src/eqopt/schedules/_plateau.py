"""Decreases once the loss stops decreasing."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from .._arguments.extra import check_number
from .._errors import naming
from .._types import Count, CountOrZero, Interval, RealScalarLike
from ._dtypes import Finite, as_real, real_dtype
from ._schedule import AbstractStatefulSchedule


# The rule. `owner` has the fields, and `state` the numbers. `eqopt.ReduceLROnPlateau`,
# which scales updates, has the same fields and numbers.


class AbstractPlateauState(eqx.Module):
    """The numbers of the rule."""

    scale: Float[Array, ""]
    best_value: Float[Array, ""]
    plateau_count: Int[Array, ""]
    cooldown_count: Int[Array, ""]
    count: Int[Array, ""]
    avg_value: Float[Array, ""]


def no_losses_yet(dtype: DTypeLike) -> dict[str, Array]:
    """The numbers before the first loss."""
    return {
        "scale": jnp.ones((), dtype),
        "best_value": jnp.full((), jnp.inf, dtype),
        "plateau_count": jnp.zeros((), jnp.int32),
        "cooldown_count": jnp.zeros((), jnp.int32),
        "count": jnp.zeros((), jnp.int32),
        "avg_value": jnp.zeros((), dtype),
    }


def after_one_more(owner: Any, state: Any, value: Any) -> dict[str, Array]:
    """The numbers after one more value, which may complete a loss."""
    value = jnp.asarray(value).astype(state.avg_value.dtype)
    count = state.count + 1
    with jax.numpy_dtype_promotion("standard"):  # of hyperparameters of any dtype
        mean = (state.count * state.avg_value + value) / count
        is_complete = count >= owner.accumulation_size
        judged = _judge(owner, state, mean)
    waiting = {**vars(state), "count": count, "avg_value": mean}

    # A hyperparameter in float64 widens the numbers, which the state does not.
    def chosen(name, old):
        both = (jnp.asarray(x[name]).astype(old.dtype) for x in (judged, waiting))
        return jnp.where(is_complete, *both)

    return {name: chosen(name, old) for name, old in vars(state).items()}


def _judge(owner: Any, state: Any, loss: Array) -> dict[str, Any]:
    """The numbers after a whole loss."""
    best = state.best_value
    # Differs from Optax in: `rtol` is relative to |best|. With `(1 - rtol) * best`, the
    # threshold for a negative best would be above it, and slightly worse losses would
    # count as improvements.
    finite = jnp.where(jnp.isfinite(best), best, 0)
    bar = best - (owner.rtol * jnp.abs(finite) + owner.atol)
    is_better, is_cooling = loss < bar, state.cooldown_count > 0
    bad = jnp.where(is_better | is_cooling, 0, state.plateau_count + 1)
    reduces = bad >= owner.patience
    smaller = jnp.maximum(owner.factor * state.scale, owner.min_scale)
    cooling = jnp.where(is_cooling, state.cooldown_count - 1, 0)
    return {
        "scale": jnp.where(reduces, smaller, state.scale),
        "best_value": jnp.where(is_better, loss, best),
        "plateau_count": jnp.where(reduces, 0, bad),
        "cooldown_count": jnp.where(reduces, owner.cooldown, cooling),
        "count": 0,
        "avg_value": 0,
    }


class ReduceOnPlateauState(AbstractPlateauState):
    """The scale, and the recent history of the loss.

    **Attributes:**

    - `scale`: the factor of `init_value`.
    - `best_value`: the smallest loss that counted as an improvement.
    - `plateau_count`: the number of consecutive losses without an improvement on it.
    - `cooldown_count`: the number of losses that will still not count after a
        reduction.
    - `count`: the number of values in `avg_value`.
    - `avg_value`: the mean of the values since the last complete loss.

    Counts are 0-d int32 arrays, the others 0-d float32 arrays, or float64 arrays with
    `jax_enable_x64`.
    """


class ReduceOnPlateau(AbstractStatefulSchedule):
    """Multiplied by a factor when the loss stops decreasing.

    The rule is the same as in [`eqopt.ReduceLROnPlateau`][], which scales updates. This
    schedule works for any hyperparameter, inside [`eqopt.Scheduled`][]:

    !!! example

        ```python
        rate = eqopt.schedules.ReduceOnPlateau(1e-3, patience=5)
        opt = eqopt.Scheduled(eqopt.AdamW(rate))
        model, state = opt.step(grads, state, model, value=loss)
        eqopt.tree.get(state, "ReduceOnPlateauState").scale
        ```

    The optimizer's `update` and `step` need the extra argument `value`, which is the
    loss. For a metric that should increase, pass its negative. The loss of a step
    counts in that step.

    To reduce another schedule, use [`eqopt.ReduceLROnPlateau`][].

    **Arguments:**

    - `init_value`: the value before the first reduction, a number or a 0-d array.
    - `factor`: the factor of a reduction, in $(0, 1)$. Defaults to 0.1.
    - `patience`: the number of consecutive losses without improvement before a
        reduction, an integer of at least 1. (It is torch's `patience` plus one.)
        Defaults to 10.
    - `rtol`: the tolerance relative to the best loss, in $[0, 1]$. Defaults to 0.0001.
    - `atol`: the absolute tolerance, at least 0. Defaults to 0.0.
    - `cooldown`: the number of losses after a reduction that do not count, an integer
        of at least 0. Defaults to 0.
    - `accumulation_size`: the number of values whose mean counts as one loss, an
        integer of at least 1. Defaults to 1.
    - `min_scale`: the smallest total factor, in $[0, 1]$. Defaults to 0.0.

    **Raises:**

    A `ValueError` or `TypeError` if an argument is out of its range, and in `update` if
    `value` is missing.
    """

    init_value: Finite
    factor: Annotated[
        RealScalarLike, Interval(0, 1, includes_low=False, includes_high=False)
    ] = 0.1
    patience: Count = 10
    rtol: Annotated[RealScalarLike, Interval(0, 1)] = 1e-4
    atol: Annotated[RealScalarLike, Interval(0)] = 0.0
    cooldown: CountOrZero = 0
    accumulation_size: Count = 1
    min_scale: Annotated[RealScalarLike, Interval(0, 1)] = 0.0

    def init(self) -> ReduceOnPlateauState:
        return ReduceOnPlateauState(**no_losses_yet(real_dtype()))

    def update(
        self, state: ReduceOnPlateauState, *, value: RealScalarLike, **extra: Any
    ) -> ReduceOnPlateauState:
        with naming(self):
            check_number("value", value)
        return ReduceOnPlateauState(**after_one_more(self, state, value))

    def __call__(self, state: ReduceOnPlateauState, **extra: Any) -> Float[Array, ""]:
        if "value" in extra:
            state = self.update(state, **extra)
        return as_real(self.init_value) * state.scale
