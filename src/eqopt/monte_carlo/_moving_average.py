"""A control variate that uses the mean of the function so far."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_interval
from .._types import PyTree, RealScalarLike
from ..numerics._numerics import safe_increment, wide_dtype
from ._arguments import real_function


def _as_float(x: Any) -> Array:
    return jnp.asarray(x) if hasattr(x, "dtype") else jnp.asarray(x, jnp.float32)


def _as_int(x: Any) -> Array:
    return jnp.asarray(x) if hasattr(x, "dtype") else jnp.asarray(x, jnp.int32)


class MovingAvgBaselineState(eqx.Module):
    """The state of [`eqopt.monte_carlo.moving_avg_baseline`][].

    `MovingAvgBaselineState()` is the initial state.

    **Arguments:**

    - `average`: the average, which starts at zero: a 0-d array, which keeps its dtype,
        or a number, which becomes float32. Defaults to 0.
    - `weight`: the sum of the weights of all values in `average`, a number or a 0-d
        array.
    - `count`: the number of values, a 0-d integer array. Defaults to 0.
    """

    average: Float[Array, ""] = eqx.field(default=0.0, converter=_as_float)
    weight: Float[Array, ""] = eqx.field(default=0.0, converter=_as_float)
    count: Int[Array, ""] = eqx.field(default=0, converter=_as_int)


def moving_avg_baseline(
    function: Callable[[Any], Any],
    decay: RealScalarLike = 0.99,
    zero_debias: bool = True,
    use_decay_early_training_heuristic: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    r"""A control variate that does not depend on the sample: an average of past values.

    In step $t = 0, 1, \dots$, with the mean $\bar f_t$ of the function over all samples,

    $$b_{t+1} = \beta_t b_t + (1 - \beta_t) \bar f_t, \qquad
      w_{t+1} = \beta_t w_t + (1 - \beta_t), \qquad b_0 = w_0 = 0,$$

    and the baseline of step $t$ is $b_t / w_t$, which is 0 as long as $w_t = 0$. It
    depends only on earlier steps, so the estimate is unbiased. Use it with
    [`eqopt.monte_carlo.score_function_jacobians`][]: a constant does not change the
    other estimators.

    !!! example

        ```python
        state = eqopt.monte_carlo.MovingAvgBaselineState()
        for key in jax.random.split(jax.random.key(0), 100):
            jacobians, state = eqopt.monte_carlo.control_variates_jacobians(
                function,
                eqopt.monte_carlo.moving_avg_baseline,
                eqopt.monte_carlo.score_function_jacobians,
                params,
                eqopt.monte_carlo.MultiNormalDiag,
                key,
                num_samples=10,
                control_variate_state=state,
            )
        ```

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number.
    - `decay`: $\beta$, in $[0, 1]$. With 0, the baseline is the mean of the last step.
        With 1 and without the heuristic, it stays 0. Defaults to 0.99.
    - `zero_debias`: whether to divide by $w_t$. Otherwise the baseline is $b_t$, which
        starts at 0. Defaults to `True`.
    - `use_decay_early_training_heuristic`: whether $\beta_t$ is
        $\min(\beta, (1 + t) / (10 + t))$, so that the first values, which are far off,
        are forgotten soon. Otherwise, it is always $\beta$. Defaults to `True`.

    **Returns:**

    A tuple of three functions:

    - `cv(params, x, state)` is the baseline for any `x`.
    - `expected_cv(params, state)` is the baseline.
    - `update_state(params, samples, state)` is the
        [`eqopt.monte_carlo.MovingAvgBaselineState`][] of the next step. A mean that is
        not finite is ignored.

    `None` for `state` means the initial state.

    **Raises:**

    A `ValueError` if `decay` is out of its range; from `update_state`, a
    `ValueError` if `function` does not return a real number.

    ??? cite "Reference"

        ```bibtex
        @article{williams1992simple,
            author = {Williams, Ronald J.},
            title = {Simple Statistical Gradient-Following Algorithms for Connectionist
                     Reinforcement Learning},
            journal = {Machine Learning},
            volume = {8},
            pages = {229--256},
            year = {1992},
        }
        ```
    """
    owner = "moving_avg_baseline"
    check_interval(owner, "decay", decay, 0, 1)
    value = real_function(owner, function)

    def baseline(state: MovingAvgBaselineState | None) -> Array:
        state = MovingAvgBaselineState() if state is None else state
        if not zero_debias:
            return state.average
        is_there = state.weight > 0
        weight = jnp.where(is_there, state.weight, 1).astype(state.average.dtype)
        return jnp.where(is_there, state.average / weight, 0)

    def cv(params: PyTree, x: Any, state: Any = None) -> Array:
        return baseline(state)

    def expected_cv(params: PyTree, state: Any = None) -> Array:
        return baseline(state)

    def update_state(params: PyTree, samples: Any, state: Any = None) -> Any:
        state = MovingAvgBaselineState() if state is None else state
        mean = lax.stop_gradient(jnp.mean(jax.vmap(value)(samples)))
        new = _step(state, mean)
        is_finite = jnp.isfinite(new.average)
        return jax.tree.map(lambda x, old: jnp.where(is_finite, x, old), new, state)

    def _step(state: MovingAvgBaselineState, mean: Array) -> MovingAvgBaselineState:
        beta = jnp.asarray(decay, jnp.float32)
        if use_decay_early_training_heuristic:
            t = state.count.astype(jnp.float32)
            beta = jnp.minimum(beta, (1 + t) / (10 + t))

        def averaged(old: Array, value: Any) -> Array:
            dtype = wide_dtype(old.dtype)
            decay, new = beta.astype(dtype), jnp.asarray(value).astype(dtype)
            return (decay * old.astype(dtype) + (1 - decay) * new).astype(old.dtype)

        return MovingAvgBaselineState(
            averaged(state.average, mean),
            averaged(state.weight, 1),
            safe_increment(state.count),
        )

    return cv, expected_cv, update_state
