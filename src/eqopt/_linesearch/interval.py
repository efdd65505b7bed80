"""The textbook search for a step size that satisfies the strong Wolfe conditions.

First the step size grows until there is an interval that must contain such a step size.
Then the interval shrinks around it. These are algorithms 3.5 and 3.6 of Nocedal and
Wright, with SciPy's interpolation.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._trees.control import while_loop
from .._types import Scalar, Updates
from .line import Line


class Criteria(eqx.Module):
    r"""The conditions for a step size $\eta$; errors are zero if it satisfies them.

    With $\varphi_0$ and $\varphi_0'$, the values at the beginning of the line,

    $$\varphi(\eta) \le \varphi_0 + c_1 \eta \varphi_0', \qquad
      |\varphi'(\eta)| \le c_2 |\varphi_0'|.$$

    If $\varphi$ is so flat that the first condition is lost in rounding,
    $\varphi(\eta) \le \varphi_0 + c_3 |\varphi_0|$, Hager and Zhang check the slope
    instead, $\varphi'(\eta) \le (2 c_1 - 1) \varphi_0'$.
    """

    slope_rtol: Float[Array, ""]
    curv_rtol: Float[Array, ""]
    approx_dec_rtol: Float[Array, ""] | None

    def decrease_error(self, line: Line, trial: "Point") -> Scalar:
        c1, c3 = self.slope_rtol, self.approx_dec_rtol
        error = trial.value - line.value - c1 * trial.step_size * line.slope
        if c3 is not None:
            steepness = trial.slope - (2 * c1 - 1) * line.slope
            height = trial.value - line.value - c3 * jnp.abs(line.value)
            error = jnp.minimum(jnp.maximum(steepness, height), error)
        return _positive(error)

    def curvature_error(self, line: Line, trial: "Point") -> Scalar:
        # Infinity times zero is not a number, but any slope is small enough for
        # infinity.
        bound = jnp.where(jnp.isinf(self.curv_rtol), jnp.inf, jnp.abs(line.slope))
        bound = jnp.where(jnp.isinf(bound), bound, self.curv_rtol * jnp.abs(line.slope))
        return _positive(jnp.abs(trial.slope) - bound)


class Point(eqx.Module):
    """A step size, and the loss there."""

    step_size: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]


class Search(eqx.Module):
    """The state of a search.

    `safe` is the step size to fall back on, and `grad` its gradient: at first the
    gradient at step size 0. Once `done`, `trial` is the result, and `grad` belongs to
    it.
    """

    count: Int[Array, ""]
    trial: Point
    low: Point
    high: Point
    reference: Point
    safe: Point
    grad: Updates
    decrease_error: Float[Array, ""]
    curvature_error: Float[Array, ""]
    is_interval: Bool[Array, ""]
    is_done: Bool[Array, ""]
    has_failed: Bool[Array, ""]

    @property
    def result(self) -> Point:
        return choose(self.is_done, self.trial, self.safe)


def search(
    line: Line,
    criteria: Criteria,
    guess: Scalar,
    max_steps: Int[Array, ""],
    max_step_size: Scalar,
    tol: Scalar,
    increase_factor: Scalar,
    precision: Scalar,
) -> Search:
    """Searches for a step size along `line`, starting with `guess`.

    There is no search along a direction that does not point downhill.
    """
    start = Point(jnp.zeros_like(line.value), line.value, line.slope)
    false = jnp.asarray(False)
    first = Search(
        count=jnp.zeros((), jnp.int32),
        trial=start,
        low=start,
        high=start,
        reference=start,
        safe=start,
        grad=line.grad,
        decrease_error=criteria.decrease_error(line, start),
        curvature_error=criteria.curvature_error(line, start),
        is_interval=false,
        is_done=false,
        has_failed=~(line.slope < 0) | (max_steps < 1),
    )

    def body(now: Search) -> Search:
        grown = jnp.where(now.count == 0, guess, increase_factor * now.trial.step_size)
        is_longest = grown >= max_step_size
        step_size = jnp.where(
            now.is_interval, _inside(now), jnp.minimum(grown, max_step_size)
        )
        value, slope, grad = line.value_and_grad_at(step_size)
        trial = Point(step_size, value, slope)
        decrease_error = criteria.decrease_error(line, trial)
        curvature_error = criteria.curvature_error(line, trial)
        is_good = jnp.maximum(decrease_error, curvature_error) <= tol
        is_low_enough = decrease_error <= tol

        *first_interval, is_found = _grow(now, trial, decrease_error)
        part = _shrink(now, trial, decrease_error)
        low, high, reference = choose(now.is_interval, part, tuple(first_interval))
        is_interval = now.is_interval | is_found | is_good
        is_done = is_good | (~is_interval & is_longest)
        is_first = now.safe.step_size == 0
        is_safe = is_low_enough & (is_first | (value < now.safe.value))
        safe = choose(is_safe, trial, now.safe)
        is_too_small = now.is_interval & (
            jnp.abs(now.high.step_size - now.low.step_size) <= precision
        )
        is_over = (now.count + 1 >= max_steps) | (is_too_small & (safe.step_size > 0))
        return Search(
            count=now.count + 1,
            trial=trial,
            low=low,
            high=high,
            reference=reference,
            safe=safe,
            grad=choose(is_safe | is_done, grad, now.grad),
            decrease_error=decrease_error,
            curvature_error=curvature_error,
            is_interval=is_interval,
            is_done=is_done,
            has_failed=is_over & ~is_done,
        )

    return while_loop(lambda now: ~(now.is_done | now.has_failed), body, first)


def _grow(
    now: Search, trial: Point, decrease_error: Scalar
) -> tuple[Point, Point, Point, Bool[Array, ""]]:
    """The interval between the last two step sizes, and whether it must contain one.

    Its lower end is the end with the lower loss.
    """
    is_risen = (trial.value >= now.trial.value) & (now.count > 0)
    is_high = (decrease_error > 0) | is_risen
    is_low = (trial.slope >= 0) & ~is_high
    low = choose(is_low, trial, now.trial)
    high = choose(is_low, now.trial, trial)
    return low, high, low, is_high | is_low


def _shrink(
    now: Search, trial: Point, decrease_error: Scalar
) -> tuple[Point, Point, Point]:
    """The part of the interval to continue with, and the discarded end."""
    width = now.high.step_size - now.low.step_size
    is_high = (decrease_error > 0) | (trial.value >= now.low.value)
    turns = (trial.slope * width >= 0) & ~is_high
    high = choose(is_high, trial, choose(turns, now.low, now.high))
    low = choose(is_high, now.low, trial)
    return low, high, choose(is_high | turns, now.high, now.low)


def _inside(now: Search) -> Scalar:
    """A step size in the interval, by a cubic, by a parabola, or in the middle.

    Infinite and NaN results are not inside.
    """
    a, b = now.low.step_size, now.high.step_size
    left, right, width = jnp.minimum(a, b), jnp.maximum(a, b), jnp.abs(b - a)
    cubic = _minimum_of_cubic(now.low, now.high, now.reference)
    parabola = _minimum_of_parabola(now.low, now.high)
    is_inside = lambda x, margin: (
        (x > left + margin * width) & (x < right - margin * width)
    )
    middle = jnp.where(is_inside(parabola, 0.1), parabola, (a + b) / 2)
    return jnp.where(is_inside(cubic, 0.2), cubic, middle)


def _minimum_of_cubic(a: Point, b: Point, c: Point) -> Scalar:
    """The minimum of the cubic with these values, and the slope at `a`."""
    to_b, to_c = b.step_size - a.step_size, c.step_size - a.step_size
    bend_b = _ratio(b.value - a.value - a.slope * to_b, to_b**2)
    bend_c = _ratio(c.value - a.value - a.slope * to_c, to_c**2)
    third = _ratio(bend_b - bend_c, to_b - to_c)
    second = bend_b - third * to_b
    square = second**2 - 3 * third * a.slope
    root = jnp.sqrt(jnp.maximum(square, 0))
    # The same number twice. If the loss is a parabola, the last form is the quotient
    # of two rounding errors, which is often inside the interval.
    to_minimum = jnp.where(
        second > 0,
        _ratio(-a.slope, second + root),
        _ratio(root - second, 3 * third),
    )
    is_there = (to_b != 0) & (to_c != 0) & (to_b != to_c) & (square >= 0) & (third != 0)
    return jnp.where(is_there, a.step_size + to_minimum, math.inf)


def _minimum_of_parabola(a: Point, b: Point) -> Scalar:
    """The minimum of the parabola with these values, and the slope at `a`."""
    to_b = b.step_size - a.step_size
    second = _ratio(b.value - a.value - a.slope * to_b, to_b**2)
    is_there = (to_b != 0) & (second != 0)
    return jnp.where(is_there, a.step_size - _ratio(a.slope, 2 * second), math.inf)


def _ratio(x: Scalar, y: Scalar) -> Scalar:
    """`x / y`, or `x` where `y` is zero: for a result that is not used."""
    return x / jnp.where(y == 0, 1, y)


def choose(pred: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(pred, x, y), new, old)


def _positive(error: Scalar) -> Scalar:
    return jnp.where(jnp.isnan(error), math.inf, jnp.maximum(error, 0))
