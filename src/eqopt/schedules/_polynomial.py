"""From one value to another by a power of the remaining time."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._dtypes import (
    Finite,
    FiniteZeroOrMore,
    IntScalarLike,
    StepsOrZero,
    as_count,
    as_integers,
    as_reals,
    compiled,
    of_counts,
)
from ._schedule import AbstractSchedule


def remaining(
    count: Int[Array, ""],
    transition_steps: Int[Array, ""],
    transition_begin: Int[Array, ""],
    dtype: jnp.dtype,
) -> Float[Array, ""]:
    """The remaining fraction of a transition: 1 before it begins, 0 after its end."""
    elapsed = jnp.maximum(count, transition_begin) - transition_begin
    ratio = elapsed.astype(dtype) / jnp.maximum(transition_steps, 1).astype(dtype)
    # Under `vmap`, XLA multiplies by 1 / T instead of dividing, so T / T may exceed 1
    # (and a power of the remainder is NaN, as in Optax). So the end is determined by
    # the integers.
    left = jnp.where(elapsed < transition_steps, jnp.maximum(1 - ratio, 0), 0)
    return jnp.where(count < transition_begin, 1, left)


def line(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    end_value: Float[Array, ""],
    transition_steps: Int[Array, ""],
    transition_begin: Int[Array, ""],
) -> Float[Array, ""]:
    left = remaining(count, transition_steps, transition_begin, init_value.dtype)
    return between(init_value, end_value, left)


def between(
    init_value: Float[Array, ""], end_value: Float[Array, ""], left: Float[Array, ""]
) -> Float[Array, ""]:
    """From `init_value` at 1 to `end_value` at 0.

    In halves, which are exact, because the difference of two large values may overflow.
    """
    half = end_value / 2
    return 2 * ((init_value / 2 - half) * left + half)


def polynomial(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    end_value: Float[Array, ""],
    power: Float[Array, ""],
    transition_steps: Int[Array, ""],
    transition_begin: Int[Array, ""],
) -> Float[Array, ""]:
    left = remaining(count, transition_steps, transition_begin, init_value.dtype)
    # At the base 0, the derivative of `pow` with respect to its exponent is 0. The
    # derivative with respect to its base is not finite, but the base does not depend on
    # anything that can be differentiated.
    return between(init_value, end_value, left**power)


# Outside `jit`, one kernel per schedule, without numbers in the cache key.
compiled_line = compiled(line)
_polynomial = compiled(polynomial)


class Linear(AbstractSchedule):
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

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return compiled_line(
            as_count(count),
            *as_reals(self, "init_value", "end_value"),
            *as_integers(self, "transition_steps", "transition_begin"),
        )


class Polynomial(AbstractSchedule):
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

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _polynomial(
            as_count(count),
            *as_reals(self, "init_value", "end_value", "power"),
            *as_integers(self, "transition_steps", "transition_begin"),
        )
