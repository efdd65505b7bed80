"""Step sizes that satisfy the strong Wolfe conditions."""

from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core import AbstractTransformation, leafwise
from .._trees.control import filter_cond
from .._trees.leaves import parameters
from .._trees.precision import compute_dtype
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
from ..tree import zeros_like
from .interval import Criteria, Search, search
from .line import Line, kept, make_line, move


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
        dtype = compute_dtype(parameters(params))
        infinity = jnp.full((), jnp.inf, dtype)
        return ScaleByZoomLinesearchState(
            jnp.ones((), dtype),
            infinity,
            zeros_like(params),
            ZoomLinesearchInfo(
                jnp.zeros((), jnp.int32), jnp.copy(infinity), jnp.copy(infinity)
            ),
        )

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ScaleByZoomLinesearchState]:
        check_state(self, state)
        line = make_line(self, updates, params, extra, state.value)
        found = self._search(line, state.learning_rate)
        if self.verbose:
            _report(found, line)
        learning_rate = found.result.step_size
        state = ScaleByZoomLinesearchState(
            learning_rate,
            found.result.value,
            kept(found.grad, state.grad),
            ZoomLinesearchInfo(
                found.count, found.decrease_error, found.curvature_error
            ),
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


def _report(found: Search, line: Line) -> None:
    message = (
        "ScaleByZoomLinesearch: no step size satisfies both conditions after {count} "
        "evaluations. The loss is {value} and its slope along the updates is {slope}; "
        "the last step size was {last}, with a decrease error of {decrease} and a "
        "curvature error of {curvature}. The used step size is {taken}."
    )
    numbers: dict[str, Any] = {
        "count": found.count,
        "value": line.value,
        "slope": line.slope,
        "last": found.trial.step_size,
        "decrease": found.decrease_error,
        "curvature": found.curvature_error,
        "taken": found.result.step_size,
    }
    show = lambda: jax.debug.print(message, **numbers)
    filter_cond(found.has_failed, show, lambda: None)
