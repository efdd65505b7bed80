"""Step sizes with a sufficient decrease of the loss."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core import AbstractTransformation, leafwise
from .._trees.control import filter_cond, while_loop
from .._trees.states import check_state
from .._types import (
    CountOrZero,
    Hyperparameter,
    Interval,
    OpenUnit,
    Params,
    Positive,
    Recorded,
    Scalar,
    State,
    Updates,
    ZeroOrMore,
)
from ..tree._like import scalar, zeros_like
from .line import Line, Trial, choose, kept, make_line, move, report, violation


class BacktrackingLinesearchInfo(eqx.Module):
    """Information about a line search.

    **Attributes:**

    - `num_linesearch_steps`: the number of evaluations of the loss.
    - `decrease_error`: by how much the last tried step size violates sufficient
        decrease; 0 if it satisfies it.

    They are a 0-d int32 array and a 0-d floating-point array.
    """

    num_linesearch_steps: Int[Array, ""]
    decrease_error: Float[Array, ""]


class ScaleByBacktrackingLinesearchState(eqx.Module):
    """The result of the last search.

    **Attributes:**

    - `learning_rate`: the factor of the updates, 0 if the search failed.
    - `value`: the loss at the new parameters; infinite before the first step.
    - `grad`: its gradient there as returned by `jax.grad`, not conjugated, with the
        shapes and dtypes of the parameters; `None` without `store_grad`.
    - `guess`: the first step size of the next search, before `increase_factor`.
    - `info`: an [`eqopt.BacktrackingLinesearchInfo`][].

    Numbers are 0-d arrays of at least float32.
    """

    learning_rate: Recorded
    value: Float[Array, ""]
    grad: Updates | None
    guess: Float[Array, ""]
    info: BacktrackingLinesearchInfo


def state_after(
    trial: Trial, is_taken: Bool[Array, ""], line: Line, grad: Updates | None
) -> ScaleByBacktrackingLinesearchState:
    """The state after a search, with the start of the line if `trial` is not taken."""
    value, new = choose(is_taken, (trial.value, trial.grad), (line.value, line.grad))
    return ScaleByBacktrackingLinesearchState(
        jnp.where(is_taken, trial.step_size, 0),
        value,
        kept(new, grad),
        trial.step_size,
        BacktrackingLinesearchInfo(trial.evaluations, trial.error),
    )


class ScaleByBacktrackingLinesearch(AbstractTransformation):
    r"""Scales updates so that the loss decreases sufficiently.

    It takes the first of the step sizes $\eta = \eta_0, d \eta_0, d^2 \eta_0, …$ along
    the updates $u$ with

    $$f(p + \eta u) \le (1 + \delta) f(p) + c_1 \eta \langle u, \nabla f(p) \rangle
        + \epsilon,$$

    sufficient decrease, or Armijo's condition. $\eta_0$ is the last step size times
    `increase_factor`, but at most `max_learning_rate`.

    If no step size satisfies the condition, but the last one decreases the loss, the
    last one is used. Otherwise, for example if the updates point uphill or all values
    are NaN, the parameters stay unchanged, and `learning_rate` in the state is 0; the
    next search continues from the last step size. (Optax uses the last step size even
    if it increases the loss.)

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.SGD(1.0), eqopt.ScaleByBacktrackingLinesearch(15))

        @eqx.filter_jit
        def train_step(batch, model, state):
            value_fn = lambda model: loss_fn(model, batch)
            value, grads = eqx.filter_value_and_grad(value_fn)(model)
            return opt.step(
                grads, state, model, value=value, grad=grads, value_fn=value_fn
            )
        ```

    `update` and `step` need three extra arguments: `value`, the loss at the parameters;
    `grad`, its gradient there, before the chain modifies it; and `value_fn`, the loss
    as a function of the whole model, on the same batch. Put the search last in a chain:
    anything after it would leave the evaluated point. Derivatives of the step treat the
    step size as a constant. Use the search under `eqx.filter_jit`; otherwise, it runs
    operation by operation.

    For complex parameters, both the updates and `grad` must be computed from the
    *conjugate* of the gradient of `jax.grad`: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `max_backtracking_steps`: the largest number of reductions of the step size, an
        integer of at least 0.
    - `slope_rtol`: $c_1 \in (0, 1)$. Defaults to 0.0001.
    - `decrease_factor`: $d \in (0, 1)$. Defaults to 0.8.
    - `increase_factor`: at least 1. If infinite, every search begins with
        `max_learning_rate`. Defaults to 1.5.
    - `max_learning_rate`: the largest step size, above 0. Defaults to 1.0.
    - `atol`: $\epsilon \ge 0$. Defaults to 0.0.
    - `rtol`: $\delta \ge 0$. Defaults to 0.0.
    - `store_grad`: whether to keep the gradient at the new parameters, so that
        [`eqopt.value_and_grad_from_state`][] can reuse it. This is for losses that are
        the same in each step. Defaults to `False`.
    - `verbose`: whether to print details when a search fails. Defaults to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if `params`, `value`, `grad`
    or `value_fn` is missing in `update`, or if `value_fn` does not return a real
    number. For complex parameters, an error at run time if the first `grad` is not
    conjugated, or if the first updates point uphill and their conjugates point
    downhill.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{vaswani2019painless,
            author = {Vaswani, Sharan and Mishkin, Aaron and Laradji, Issam and
                      Schmidt, Mark and Gidel, Gauthier and Lacoste-Julien, Simon},
            title = {Painless Stochastic Gradient: Interpolation, Line-Search, and
                     Convergence Rates},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """

    _loads = "nothing"

    max_backtracking_steps: CountOrZero
    slope_rtol: OpenUnit = 1e-4
    decrease_factor: OpenUnit = 0.8
    increase_factor: Annotated[Hyperparameter, Interval(1)] = 1.5
    max_learning_rate: Positive = 1.0
    atol: ZeroOrMore = 0.0
    rtol: ZeroOrMore = 0.0
    store_grad: bool = eqx.field(static=True, default=False)
    verbose: bool = eqx.field(static=True, default=False)

    def init(self, params: Params) -> ScaleByBacktrackingLinesearchState:
        infinity = lambda: scalar(jnp.inf, params)
        return ScaleByBacktrackingLinesearchState(
            scalar(1, params),
            infinity(),
            zeros_like(params) if self.store_grad else None,
            scalar(1, params),
            BacktrackingLinesearchInfo(jnp.zeros((), jnp.int32), infinity()),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        line = make_line(self, updates, params, extra, state.value)
        atol = line.constant(self.atol)
        last = self._search(line, state.guess, atol)
        is_good = last.error <= atol
        is_taken = is_good | (last.value < line.value)
        new = state_after(last, is_taken, line, state.grad if self.store_grad else None)
        if self.verbose:
            report(
                ~is_good,
                "ScaleByBacktrackingLinesearch",
                line,
                evaluations=last.evaluations,
                last_step_size=last.step_size,
                decrease_error=last.error,
                used_step_size=new.learning_rate,
            )
        return leafwise(move, updates, step_size=new.learning_rate), new

    def _search(self, line: Line, guess: Scalar, atol: Scalar) -> Trial:
        real = line.constant
        most = jnp.asarray(self.max_backtracking_steps, jnp.int32)
        grown = real(self.increase_factor) * real(guess)
        first = jnp.minimum(grown, real(self.max_learning_rate))

        def decrease_error(step_size, value):
            bound = (1 + real(self.rtol)) * line.value
            bound += real(self.slope_rtol) * step_size * line.slope
            return violation(value - bound)

        def body(now: Trial) -> Trial:
            shrunk = real(self.decrease_factor) * now.step_size
            step_size = jnp.where(now.evaluations > 0, shrunk, now.step_size)
            if not self.store_grad:
                value, grad = line.value_at(step_size), now.grad
                error = decrease_error(step_size, value)
            else:
                value, pullback = line.value_and_pullback_at(step_size)
                error = decrease_error(step_size, value)
                is_last = (error <= atol) | (now.evaluations >= most)
                # The gradient is half of the work, and only needed for the last one.
                grad = filter_cond(is_last, pullback, lambda: now.grad)
            return Trial(step_size, value, grad, error, now.evaluations + 1)

        infinity = jnp.full_like(first, jnp.inf)
        none = Trial(first, line.value, line.grad, infinity, jnp.int32(0))
        goes_on = lambda now: ~(now.error <= atol) & (now.evaluations <= most)
        return while_loop(goes_on, body, none)
