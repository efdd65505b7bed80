"""Step sizes that fulfil the strong Wolfe conditions."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._checks import check_count, check_range, check_state
from .._control import filter_cond
from .._equations import compute_dtype
from .._leaves import parameters
from .._pipeline import Leafwise, Pipeline
from .._transformation import AbstractFused
from .._types import Hyperparameter, IntegerLike, Params, State, Updates
from ..tree import zeros_like
from .interval import Criteria, Search, search
from .line import Line, kept, make_line, move


class ZoomLinesearchInfo(eqx.Module):
    """How a search went.

    **Attributes:**

    - `num_linesearch_steps`: how often the loss and its gradient were evaluated.
    - `decrease_error`: by how much the last step size that was tried misses sufficient
        decrease; 0 if it does not.
    - `curvature_error`: by how much it misses small curvature; 0 if it does not.

    An int32 and two floating 0-d arrays.
    """

    num_linesearch_steps: Int[Array, ""]
    decrease_error: Float[Array, ""]
    curvature_error: Float[Array, ""]


class ScaleByZoomLinesearchState(eqx.Module):
    """What the last search found.

    **Attributes:**

    - `learning_rate`: the factor of the updates, 0 if the search failed.
    - `value`: the loss at the new parameters; infinite before the first step.
    - `grad`: its gradient there as returned by `jax.grad`, not conjugated, of the
        shapes and dtypes of the parameters.
    - `info`: an [`eqopt.ZoomLinesearchInfo`][].

    Numbers are 0-d arrays of at least float32.
    """

    learning_rate: Float[Array, ""]
    value: Float[Array, ""]
    grad: Updates
    info: ZoomLinesearchInfo


class ScaleByZoomLinesearch(AbstractFused):
    r"""Scales updates such that the loss decreases and flattens sufficiently.

    It searches for a step size $\eta$ along the updates $u$ with

    $$\begin{aligned}
      f(p + \eta u) &\le f(p) + c_1 \eta \langle u, \nabla f(p) \rangle + \epsilon, \\
      |\langle u, \nabla f(p + \eta u) \rangle| &\le
        c_2 |\langle u, \nabla f(p) \rangle| + \epsilon,
    \end{aligned}$$

    sufficient decrease and small curvature: the strong Wolfe conditions. It doubles a
    first guess until there must be such a step size below it, and then approaches one
    by cubic interpolation. Each step size that it tries costs one evaluation of the
    loss with its gradient. Both are kept for the next step, where
    [`eqopt.value_and_grad_from_state`][] reuses them.

    Where $f(p + \eta u) \le f(p) + c_3 |f(p)|$, a decrease may be lost in rounding;
    then $\langle u, \nabla f(p + \eta u) \rangle \le (2 c_1 - 1) \langle u, \nabla f(p)
    \rangle$ is enough for the first condition.

    If no step size satisfies both conditions, the best one that satisfies the first is
    taken. If there is none either, for example if the updates lead uphill or all values
    are NaN, the parameters stay unchanged, and `learning_rate` in the state is 0.
    (Optax takes the last step size that it tried, if the loss is finite there.)

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
    constant. Use the search under `eqx.filter_jit`: outside, it runs operation by
    operation.

    For complex parameters, both the updates and `grad` must be computed from the
    *conjugate* of the gradient of `jax.grad`: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `max_linesearch_steps`: how many step sizes to try at most, an integer of at least
        1.
    - `max_learning_rate`: the largest step size, above 0. Defaults to `None`, for no
        bound.
    - `tol`: $\epsilon \ge 0$.
    - `increase_factor`: by what a step size that is too small grows, above 1.
    - `slope_rtol`: $c_1 \in (0, 1)$.
    - `curv_rtol`: $c_2 > 0$. At infinity, the second condition is none.
    - `approx_dec_rtol`: $c_3 \ge 0$, or `None` only for the first condition.
    - `stepsize_precision`: at least 0. If the step size is known up to this, one that
        meets the first condition is enough.
    - `initial_guess_strategy`: where to begin: `"keep"`, at the last step size, which is
        for gradient descent, or `"one"`, at 1, for methods of Newton's kind. After a
        search that failed, both begin at 1.
    - `verbose`: whether to print what happened when a search fails.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if `update` was not given
    `params`, `value`, `grad` and `value_fn`, or if `value_fn` returns other than one real
    number. For complex parameters, at run time an error if the first `grad` is not
    conjugated, or the first updates lead uphill and their conjugates downhill.

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

    max_linesearch_steps: IntegerLike
    max_learning_rate: Hyperparameter | None = None
    tol: Hyperparameter = 0.0
    increase_factor: Hyperparameter = 2.0
    slope_rtol: Hyperparameter = 1e-4
    curv_rtol: Hyperparameter = 0.9
    approx_dec_rtol: Hyperparameter | None = 1e-6
    stepsize_precision: Hyperparameter = 1e-5
    initial_guess_strategy: Literal["keep", "one"] = eqx.field(
        static=True, default="keep"
    )
    verbose: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_count(self, "max_linesearch_steps")
        if self.max_learning_rate is not None:
            check_range(self, "max_learning_rate", 0, includes_low=False)
        for name in ("tol", "stepsize_precision"):
            check_range(self, name, 0)
        check_range(self, "increase_factor", 1, includes_low=False)
        check_range(self, "slope_rtol", 0, 1, includes_low=False)
        check_range(self, "curv_rtol", 0, includes_low=False)
        if self.approx_dec_rtol is not None:
            check_range(self, "approx_dec_rtol", 0)
        if self.initial_guess_strategy not in ("keep", "one"):
            raise ValueError(
                "ScaleByZoomLinesearch: `initial_guess_strategy` must be 'keep' or "
                f"'one', but is {self.initial_guess_strategy!r}."
            )

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

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        check_state(self, state)
        line = make_line(
            self, pipeline.flush(), pipeline.params, pipeline.extra, state.value
        )
        found = self._search(line, state.learning_rate)
        if self.verbose:
            _report(found, line)
        learning_rate = found.result.step_size
        shared = {"step_size": learning_rate}
        pipeline.push("ScaleByZoomLinesearch", Leafwise(move, shared=shared))
        return lambda: ScaleByZoomLinesearchState(
            learning_rate,
            found.result.value,
            kept(found.grad, state.grad),
            ZoomLinesearchInfo(
                found.count, found.decrease_error, found.curvature_error
            ),
        )

    def _search(self, line: Line, last: Float[Array, ""]) -> Search:
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
        "ScaleByZoomLinesearch: no step size meets both conditions after {count} "
        "evaluations. The loss is {value} and its slope along the updates {slope}; the "
        "last step size was {last}, with errors {decrease} of the decrease and "
        "{curvature} of the curvature. The step size taken is {taken}."
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
