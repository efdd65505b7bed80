"""Decay or growth by a constant factor per number of steps."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._dtypes import (
    Finite,
    FinitePositive,
    IntScalarLike,
    Steps,
    StepsOrZero,
    as_count,
    as_integers,
    as_reals,
    compiled,
    of_counts,
)
from ._polynomial import line
from ._schedule import AbstractSchedule


def exponential(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    decay_rate: Float[Array, ""],
    end_value: Float[Array, ""] | None,
    transition_steps: Int[Array, ""],
    transition_begin: Int[Array, ""],
    staircase: bool,
) -> Float[Array, ""]:
    dtype = init_value.dtype
    begin = jnp.maximum(transition_begin, 0)
    elapsed = jnp.maximum(count, begin) - begin
    steps = jnp.maximum(transition_steps, 1)
    if staircase:  # with integers: XLA may multiply by 1 / T, so that 3 / 3 is below 1
        exponent = (elapsed // steps).astype(dtype)
    else:
        exponent = elapsed.astype(dtype) / steps.astype(dtype)
    # An overflow has no finite derivative, even if `end_value` replaces the value.
    speed = jnp.abs(jnp.log(jax.lax.stop_gradient(decay_rate)))
    exponent = jnp.minimum(exponent, 60 / jnp.maximum(speed, 1e-30))
    value = init_value * decay_rate**exponent
    if end_value is None:
        return value
    lower, upper = jnp.minimum(value, end_value), jnp.maximum(value, end_value)
    return jnp.where(decay_rate < 1, upper, lower)


_exponential = compiled(exponential, static_argnames="staircase")


@partial(compiled, static_argnames="staircase")
def _warmup_exponential_decay(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    peak_value: Float[Array, ""],
    decay_rate: Float[Array, ""],
    end_value: Float[Array, ""] | None,
    warmup_steps: Int[Array, ""],
    transition_steps: Int[Array, ""],
    transition_begin: Int[Array, ""],
    *,
    staircase: bool,
) -> Float[Array, ""]:
    warmup = line(count, init_value, peak_value, warmup_steps, jnp.zeros_like(count))
    decay = exponential(
        jnp.maximum(count, warmup_steps) - warmup_steps,
        peak_value,
        decay_rate,
        end_value,
        transition_steps,
        transition_begin,
        staircase,
    )
    return jnp.where(count < warmup_steps, warmup, decay)


class ExponentialDecay(AbstractSchedule):
    r"""Decays or grows by a constant factor per number of steps.

    $$s(t) = I\, r^p, \qquad p = \frac{\max(t - B, 0)}{T}$$

    With `staircase`, $p$ is rounded down. The factor $r^p$ stays between $10^{-26}$ and
    $10^{26}$, so that nothing overflows.

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `transition_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `decay_rate`: $r > 0$, a number or a 0-d array. With $r > 1$, the value grows.
    - `transition_begin`: $B \ge 0$, an integer or a 0-d integer array. Defaults to 0.
    - `staircase`: whether the value jumps every $T$ steps and is constant in between.
        Defaults to `False`.
    - `end_value`: the bound, a number or a 0-d array: the smallest value if $r < 1$,
        otherwise the largest. Defaults to `None`, which means no bound.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is out of its range or not an
    integer, if `decay_rate` is not positive, or if a value is not finite or has axes.
    """

    init_value: Finite
    # Differs from Optax, where a rate of 0, or a transition of 0 steps, means no decay.
    transition_steps: Steps
    decay_rate: FinitePositive
    transition_begin: StepsOrZero = 0
    staircase: bool = eqx.field(static=True, default=False)
    end_value: Finite | None = None

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _exponential(
            as_count(count),
            *as_reals(self, "init_value", "decay_rate", "end_value"),
            *as_integers(self, "transition_steps", "transition_begin"),
            staircase=self.staircase,
        )


class WarmupExponentialDecay(AbstractSchedule):
    r"""Up along a straight line, then down by the same factor per number of steps.

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M\, r^p, \quad p = \max(t - W - B, 0) / T & t \ge W
    \end{cases}$$

    The second part is [`eqopt.schedules.ExponentialDecay`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array: the value at $t = W$.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        schedule starts at the peak.
    - `transition_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `decay_rate`: $r > 0$, a number or a 0-d array.
    - `transition_begin`: $B \ge 0$, an integer or a 0-d integer array: the number of
        steps at the peak. Defaults to 0.
    - `staircase`: whether $p$ is rounded down. Defaults to `False`.
    - `end_value`: the smallest value of the second part if $r < 1$, otherwise the
        largest, a number or a 0-d array. Defaults to `None`, which means no bound.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is out of its range or not an
    integer, if `decay_rate` is not positive, or if a value is not finite or has axes.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero
    # Differs from Optax, where a rate of 0, or a transition of 0 steps, means no decay.
    transition_steps: Steps
    decay_rate: FinitePositive
    transition_begin: StepsOrZero = 0
    staircase: bool = eqx.field(static=True, default=False)
    end_value: Finite | None = None

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _warmup_exponential_decay(
            as_count(count),
            *as_reals(self, "init_value", "peak_value", "decay_rate", "end_value"),
            *as_integers(self, "warmup_steps", "transition_steps", "transition_begin"),
            staircase=self.staircase,
        )


class Step(AbstractSchedule):
    r"""Multiplied by the same factor every $S$ steps, and constant in between.

    $$s(t) = I\, \gamma^{\lfloor t / S \rfloor}$$

    This is `torch.optim.lr_scheduler.StepLR`, and
    [`eqopt.schedules.ExponentialDecay`][] with `staircase`.

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `step_size`: $S \ge 1$, an integer or a 0-d integer array.
    - `gamma`: $\gamma > 0$, a number or a 0-d array. Defaults to 0.1.

    **Raises:**

    A `ValueError` or `TypeError` if `step_size` is not positive or not an integer, if
    `gamma` is not positive, or if a value is not finite or has axes.
    """

    init_value: Finite
    step_size: Steps
    gamma: FinitePositive = 0.1

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        count = as_count(count)
        return _exponential(
            count,
            *as_reals(self, "init_value", "gamma"),
            None,
            *as_integers(self, "step_size"),
            as_count(0),
            staircase=True,
        )
