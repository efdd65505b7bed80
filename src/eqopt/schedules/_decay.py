"""From one value to another: along a line, a power, a cosine wave, or by factors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._dtypes import Finite, FinitePositive, FiniteZeroOrMore, Steps, StepsOrZero
from ._schedule import AbstractFormula


# The part of a transition that remains after the fraction `x` of it.
SHAPES = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: 0.5 * (1 + jnp.cos(jnp.pi * x)),
    "1-sqrt": lambda x: 1 - jnp.sqrt(x),
}


def remaining(count, transition_steps, transition_begin: Int[Array, ""] | int, dtype):
    """The remaining fraction of a transition: 1 before it begins, 0 after its end."""
    elapsed = jnp.maximum(count, transition_begin) - transition_begin
    ratio = elapsed.astype(dtype) / jnp.maximum(transition_steps, 1).astype(dtype)
    # Under `vmap`, XLA multiplies by 1 / T instead of dividing, so T / T may exceed 1
    # (and a power of the remainder is NaN, as in Optax). So the end is determined by
    # the integers.
    left = jnp.where(elapsed < transition_steps, jnp.maximum(1 - ratio, 0), 0)
    return jnp.where(count < transition_begin, 1, left)


def line(count, init_value, end_value, transition_steps, transition_begin=0):
    left = remaining(count, transition_steps, transition_begin, init_value.dtype)
    return between(init_value, end_value, left)


def between(init_value, end_value, left) -> Float[Array, ""]:
    """From `init_value` at 1 to `end_value` at 0.

    In halves, which are exact, because the difference of two large values may overflow.
    """
    half = end_value / 2
    return 2 * ((init_value / 2 - half) * left + half)


class Linear(AbstractFormula):
    r"""From one value to another along a straight line.

    $$s(t) = \begin{cases}
        I & t < B \\
        I + (E - I)\, (t - B) / T & B \le t < B + T \\
        E & t \ge B + T
    \end{cases}$$

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `end_value`: $E$, a number or a 0-d array.
    - `transition_steps`: $T \ge 0$, an integer or a 0-d integer array. With $T = 0$ the
        value jumps from $I$ to $E$ at $t = B$. (In Optax it stays at $I$ forever.)
    - `transition_begin`: $B \ge 0$, an integer or a 0-d integer array. Defaults to 0.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is negative or not an integer, or
    if a value is not finite or has axes.
    """

    init_value: Finite
    end_value: Finite
    transition_steps: StepsOrZero
    transition_begin: StepsOrZero = 0

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        values = self.init_value, self.end_value
        return line(count, *values, self.transition_steps, self.transition_begin)


class Polynomial(AbstractFormula):
    r"""From one value to another by a power of the remaining time.

    $$s(t) = \begin{cases}
        I & t < B \\
        E + (I - E) \left(1 - (t - B) / T\right)^P & B \le t < B + T \\
        E & t \ge B + T
    \end{cases}$$

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `end_value`: $E$, a number or a 0-d array.
    - `power`: $P \ge 0$, a number or a 0-d array. With $P = 1$, this is
        [`eqopt.schedules.Linear`][]; with $P > 1$, it starts fast and ends slowly. As
        $0^0 = 1$, the value stays at $I$ if $P = 0$.
    - `transition_steps`: $T \ge 0$, an integer or a 0-d integer array. With $T = 0$ the
        value jumps from $I$ to $E$ at $t = B$. (In Optax it stays at $I$ forever.)
    - `transition_begin`: $B \ge 0$, an integer or a 0-d integer array. Defaults to 0.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is negative or not an integer, if
    `power` is negative, or if a value is not finite or has axes.
    """

    init_value: Finite
    end_value: Finite
    power: FiniteZeroOrMore
    transition_steps: StepsOrZero
    transition_begin: StepsOrZero = 0

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        begin, dtype = self.transition_begin, self.init_value.dtype
        left = remaining(count, self.transition_steps, begin, dtype)
        # At the base 0, the derivative of `pow` with respect to its exponent is 0. The
        # derivative with respect to its base is not finite, but the base does not depend
        # on anything that can be differentiated.
        return between(self.init_value, self.end_value, left**self.power)


def half_wave(count, decay_steps, exponent, duration: Any = None):
    """From 1 at the count 0 to exactly 0 from `decay_steps` on.

    `duration` is the number of steps if it does not fit into an integer.
    """
    dtype = exponent.dtype
    if duration is None:
        duration = decay_steps.astype(dtype)
    elapsed = jnp.clip(count, 0, decay_steps).astype(dtype)
    # `1 + cos` loses digits near the end. `sin((1 - t / T) * pi / 2) ** 2` does not,
    # but then the result differs from Optax, and an exponent below 1 magnifies the
    # difference. The order of multiplication and division follows Optax for the same
    # reason.
    angle = jnp.pi * elapsed / jnp.maximum(duration, 1)
    wave = 0.5 * (1 + jnp.cos(angle))
    # Rounding must not make the base negative, nor leave a remainder at the end.
    wave = jnp.where(count < decay_steps, jnp.maximum(wave, 0), 0)
    # On the derivative at the base 0, see `Polynomial`.
    return wave**exponent


class CosineDecay(AbstractFormula):
    r"""Down along half a cosine wave: slowly at the beginning and at the end.

    $$s(t) = I \left((1 - \alpha) \left(
        \frac{1 + \cos(\pi \min(t, T) / T)}{2}
    \right)^p + \alpha\right)$$

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `decay_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `alpha`: $\alpha$, a number or a 0-d array: the last value as a fraction of the
        first. Defaults to 0.
    - `exponent`: $p \ge 0$, a number or a 0-d array. Defaults to 1. As $0^0 = 1$, the
        value stays at $I$ if $p = 0$.

    **Raises:**

    A `ValueError` or `TypeError` if `decay_steps` is not positive or not an integer, if
    `exponent` is negative, or if a value is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{loshchilov2017sgdr,
            author = {Loshchilov, Ilya and Hutter, Frank},
            title = {{SGDR}: Stochastic Gradient Descent with Warm Restarts},
            booktitle = {International Conference on Learning Representations},
            year = {2017},
            eprint = {1608.03983},
            archivePrefix = {arXiv},
        }
        ```
    """

    init_value: Finite
    decay_steps: Steps
    alpha: Finite = 0.0
    exponent: FiniteZeroOrMore = 1.0

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        wave = half_wave(count, self.decay_steps, self.exponent)
        return self.init_value * ((1 - self.alpha) * wave + self.alpha)


def exponential(owner: Any, count, init_value) -> Float[Array, ""]:
    """Multiplies `init_value` by the rate of `owner` in each of its transitions."""
    dtype, decay_rate = init_value.dtype, owner.decay_rate
    begin = jnp.maximum(owner.transition_begin, 0)
    elapsed = jnp.maximum(count, begin) - begin
    steps = jnp.maximum(owner.transition_steps, 1)
    if owner.staircase:
        # With integers: XLA may multiply by 1 / T, so that 3 / 3 is below 1.
        exponent = (elapsed // steps).astype(dtype)
    else:
        exponent = elapsed.astype(dtype) / steps.astype(dtype)
    # An overflow has no finite derivative, even if `end_value` replaces the value.
    speed = jnp.abs(jnp.log(jax.lax.stop_gradient(decay_rate)))
    exponent = jnp.minimum(exponent, 60 / jnp.maximum(speed, 1e-30))
    value = init_value * decay_rate**exponent
    if owner.end_value is None:
        return value
    lower = jnp.minimum(value, owner.end_value)
    upper = jnp.maximum(value, owner.end_value)
    return jnp.where(decay_rate < 1, upper, lower)


class ExponentialDecay(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        return exponential(self, count, self.init_value)


class Step(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        decay = ExponentialDecay(
            self.init_value, self.step_size, self.gamma, staircase=True
        )
        return decay._formula(count)
