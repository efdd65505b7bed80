"""Step sizes that satisfy the strong Wolfe conditions."""

import math
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core import AbstractTransformation, leafwise
from .._trees.control import while_loop
from .._trees.states import check_state
from .._types import (
    Count,
    Hyperparameter,
    Interval,
    OpenUnit,
    Params,
    Positive,
    Scalar,
    State,
    Updates,
    ZeroOrMore,
)
from ..tree._like import scalar, zeros_like
from .line import Line, choose, kept, make_line, move, report, violation


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
        return violation(error)

    def curvature_error(self, line: Line, trial: "Point") -> Scalar:
        # Infinity times zero is not a number, but any slope is small enough for
        # infinity.
        bound = jnp.where(jnp.isinf(self.curv_rtol), jnp.inf, jnp.abs(line.slope))
        bound = jnp.where(jnp.isinf(bound), bound, self.curv_rtol * jnp.abs(line.slope))
        return violation(jnp.abs(trial.slope) - bound)


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
    line, criteria, guess, max_steps, max_step_size, tol, increase_factor, precision
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


def _grow(now: Search, trial: Point, decrease_error: Scalar):
    """The interval between the last two step sizes, and whether it must contain one.

    Its lower end is the end with the lower loss.
    """
    is_risen = (trial.value >= now.trial.value) & (now.count > 0)
    is_high = (decrease_error > 0) | is_risen
    is_low = (trial.slope >= 0) & ~is_high
    low = choose(is_low, trial, now.trial)
    high = choose(is_low, now.trial, trial)
    return low, high, low, is_high | is_low


def _shrink(now: Search, trial: Point, decrease_error) -> tuple[Point, Point, Point]:
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

    def is_inside(x, margin):
        return (x > left + margin * width) & (x < right - margin * width)

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
        second > 0, _ratio(-a.slope, second + root), _ratio(root - second, 3 * third)
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


class ZoomLinesearchInfo(eqx.Module):
    """Information about a line search.

    **Attributes:**

    - `num_linesearch_steps`: the number of evaluations of the loss and its gradient.
    - `decrease_error`: by how much the last tried step size violates sufficient
        decrease; 0 if it satisfies it.
    - `curvature_error`: by how much it violates small curvature; 0 if it satisfies it.

    They are a 0-d int32 array and two 0-d floating-point arrays.
    """

    num_linesearch_steps: Int[Array, ""]
    decrease_error: Float[Array, ""]
    curvature_error: Float[Array, ""]


class ScaleByZoomLinesearchState(eqx.Module):
    """The result of the last search.

    **Attributes:**

    - `learning_rate`: the factor of the updates, 0 if the search failed.
    - `value`: the loss at the new parameters; infinite before the first step.
    - `grad`: its gradient there as returned by `jax.grad`, not conjugated, with the
        shapes and dtypes of the parameters.
    - `info`: an [`eqopt.ZoomLinesearchInfo`][].

    Numbers are 0-d arrays of at least float32.
    """

    learning_rate: Float[Array, ""]
    value: Float[Array, ""]
    grad: Updates
    info: ZoomLinesearchInfo


class ScaleByZoomLinesearch(AbstractTransformation):
    r"""Scales updates so that the loss decreases and flattens sufficiently.

    It searches for a step size $\eta$ along the updates $u$ with

    $$\begin{aligned}
      f(p + \eta u) &\le f(p) + c_1 \eta \langle u, \nabla f(p) \rangle + \epsilon, \\
      |\langle u, \nabla f(p + \eta u) \rangle| &\le
        c_2 |\langle u, \nabla f(p) \rangle| + \epsilon,
    \end{aligned}$$

    sufficient decrease and small curvature: the strong Wolfe conditions. It doubles a
    first guess until such a step size must exist below it, and then approaches one by
    cubic interpolation. Each step size that it tries costs one evaluation of the loss
    and its gradient. Both are kept for the next step, where
    [`eqopt.value_and_grad_from_state`][] reuses them.

    If $f(p + \eta u) \le f(p) + c_3 |f(p)|$, a decrease may be lost in rounding. In
    that case, $\langle u, \nabla f(p + \eta u) \rangle \le (2 c_1 - 1) \langle u,
    \nabla f(p)
    \rangle$ is enough for the first condition.

    If no step size satisfies both conditions, the best one that satisfies the first
    condition is used. If there is none, for example because the updates point uphill or
    all values are NaN, the parameters stay unchanged, and `learning_rate` in the state
    is 0. (Optax uses the last step size that it tried, if the loss is finite there.)

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.SGD(1.0), eqopt.ScaleByZoomLinesearch(15))
        value_and_grad = eqopt.value_and_grad_from_state(loss_fn)

        @eqx.filter_jit
        def train_step(model, state):
            value, grads = value_and_grad(model, state=state)
            return opt.step(
                grads, state, model, value=value, grad=grads, value_fn=loss_fn
            )
        ```

    `update` and `step` need three extra arguments: `value`, the loss at the parameters;
    `grad`, its gradient there, before the chain modifies it; and `value_fn`, the loss
    as a function of the whole model. Put the search last in a chain: anything after it
    would leave the evaluated point. Derivatives of the step treat the step size as a
    constant. Use the search under `eqx.filter_jit`; otherwise, it runs operation by
    operation.

    For complex parameters, both the updates and `grad` must be computed from the
    *conjugate* of the gradient of `jax.grad`: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `max_linesearch_steps`: the largest number of step sizes to try, an integer of at
        least 1.
    - `max_learning_rate`: the largest step size, above 0. Defaults to `None`, which
        means no bound.
    - `tol`: $\epsilon \ge 0$. Defaults to 0.0.
    - `increase_factor`: the growth factor for a step size that is too small, above 1.
        Defaults to 2.0.
    - `slope_rtol`: $c_1 \in (0, 1)$. Defaults to 0.0001.
    - `curv_rtol`: $c_2 > 0$. If infinite, the second condition always holds. Defaults
        to 0.9.
    - `approx_dec_rtol`: $c_3 \ge 0$, or `None` to require the first condition exactly.
        Defaults to 1e-6.
    - `stepsize_precision`: at least 0. Once the step size is known to this precision, a
        step size that satisfies the first condition is enough. Defaults to 1e-5.
    - `initial_guess_strategy`: the first step size: `"keep"`, the last step size, for
        gradient descent, or `"one"`, 1, for Newton-like methods. After a failed search,
        both begin at 1. Defaults to `"keep"`.
    - `verbose`: whether to print details when a search fails. Defaults to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if `params`, `value`, `grad`
    or `value_fn` is missing in `update`, or if `value_fn` does not return a real
    number. For complex parameters, an error at run time if the first `grad` is not
    conjugated, or if the first updates point uphill and their conjugates point
    downhill.

    ??? cite "References"

        Algorithms 3.5 and 3.6 of the book; the criterion for flat losses is from the
        article.

        ```bibtex
        @book{nocedal2006numerical,
            author = {Nocedal, Jorge and Wright, Stephen J.},
            title = {Numerical Optimization},
            edition = {2nd},
            publisher = {Springer},
            year = {2006},
        }

        @article{hager2006algorithm,
            author = {Hager, William W. and Zhang, Hongchao},
            title = {Algorithm 851: {CG\_DESCENT}, a Conjugate Gradient Method with
                     Guaranteed Descent},
            journal = {ACM Transactions on Mathematical Software},
            volume = {32},
            number = {1},
            pages = {113--137},
            year = {2006},
        }
        ```
    """

    _loads = "nothing"

    max_linesearch_steps: Count
    max_learning_rate: Positive | None = None
    tol: ZeroOrMore = 0.0
    increase_factor: Annotated[Hyperparameter, Interval(1, includes_low=False)] = 2.0
    slope_rtol: OpenUnit = 1e-4
    curv_rtol: Positive = 0.9
    approx_dec_rtol: ZeroOrMore | None = 1e-6
    stepsize_precision: ZeroOrMore = 1e-5
    initial_guess_strategy: Literal["keep", "one"] = eqx.field(
        static=True, default="keep"
    )
    verbose: bool = eqx.field(static=True, default=False)

    def init(self, params: Params) -> ScaleByZoomLinesearchState:
        infinity = lambda: scalar(jnp.inf, params)
        return ScaleByZoomLinesearchState(
            scalar(1, params),
            infinity(),
            zeros_like(params),
            ZoomLinesearchInfo(jnp.zeros((), jnp.int32), infinity(), infinity()),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        line = make_line(self, updates, params, extra, state.value)
        found = self._search(line, state.learning_rate)
        if self.verbose:
            report(
                found.has_failed,
                "ScaleByZoomLinesearch",
                line,
                evaluations=found.count,
                last_step_size=found.trial.step_size,
                decrease_error=found.decrease_error,
                curvature_error=found.curvature_error,
                used_step_size=found.result.step_size,
            )
        learning_rate = found.result.step_size
        errors = found.decrease_error, found.curvature_error
        state = ScaleByZoomLinesearchState(
            learning_rate,
            found.result.value,
            kept(found.grad, state.grad),
            ZoomLinesearchInfo(found.count, *errors),
        )
        return leafwise(move, updates, step_size=learning_rate), state

    def _search(self, line: Line, last: Scalar) -> Search:
        as_real = line.constant
        last = as_real(last)
        bound, dec_rtol = self.max_learning_rate, self.approx_dec_rtol
        keeps = self.initial_guess_strategy == "keep"
        return search(
            line,
            Criteria(
                as_real(self.slope_rtol),
                as_real(self.curv_rtol),
                None if dec_rtol is None else as_real(dec_rtol),
            ),
            guess=jnp.where(last > 0, last, 1) if keeps else jnp.ones_like(last),
            max_steps=jnp.asarray(self.max_linesearch_steps, jnp.int32),
            max_step_size=as_real(jnp.inf if bound is None else bound),
            tol=as_real(self.tol),
            increase_factor=as_real(self.increase_factor),
            precision=as_real(self.stepsize_precision),
        )
