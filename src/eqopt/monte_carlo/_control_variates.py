"""Control variates: functions with a known expectation, which reduce the variance."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_interval, check_number_in
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import disagreement
from .._types import Key, PyTree, RealScalarLike
from ..numerics._numerics import (
    at_least_float32,
    common_dtype,
    safe_increment,
    wide_dtype,
)
from ._estimators import (
    MultiNormalDiag,
    build,
    check_normal,
    real_function,
    real_number,
    real_parameters,
    sample_keys,
)


def control_variates_jacobians(
    function: Callable[[Any], Any],
    control_variate_from_function: Callable[[Callable[[Any], Any]], Any],
    grad_estimator: Callable[..., Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
    control_variate_state: PyTree = None,
    estimate_cv_coeffs: bool = False,
    estimate_cv_coeffs_num_samples: int = 20,
) -> tuple[PyTree, PyTree]:
    r"""Estimates a gradient with the help of a function $h$ with a known expectation.

    With the estimates $\hat\nabla_\theta$ of `grad_estimator`, for each sample $x_n$,

    $$\hat\nabla_\theta f(x_n) - \beta\, \big(\hat\nabla_\theta h(x_n) +
      \partial_\theta h(x_n; \theta)\big) + \beta\, \nabla_\theta\,
      \mathbb{E}_{p(x; \theta)} h(x; \theta).$$

    All terms except the first are 0 on average, so the estimate is unbiased. If $h$ is
    similar to $f$, the noise of both cancels. $\partial_\theta h$ appears because $h$
    may depend on the parameters directly, not only through its argument.

    !!! example

        ```python
        jacobians, _ = eqopt.monte_carlo.control_variates_jacobians(
            function,
            eqopt.monte_carlo.control_delta_method,
            eqopt.monte_carlo.score_function_jacobians,
            (loc, log_scale),
            eqopt.monte_carlo.MultiNormalDiag,
            jax.random.key(0),
            num_samples=100,
        )
        ```

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number. It must work
        under `jax.vmap`, and may be a whole model. If it depends on $\theta$ directly,
        that part of the derivative is not included.
    - `control_variate_from_function`: a function of `function` that returns a tuple of
        three functions: `cv(params, x, state)`, which is $h(x; \theta)$ for one sample;
        `expected_cv(params, state)`, its expectation; and
        `update_state(params, samples, state)`, the state for the next call. Examples
        are [`eqopt.monte_carlo.control_delta_method`][] and
        [`eqopt.monte_carlo.moving_avg_baseline`][].
    - `grad_estimator`: [`eqopt.monte_carlo.score_function_jacobians`][],
        [`eqopt.monte_carlo.pathwise_jacobians`][],
        [`eqopt.monte_carlo.measure_valued_jacobians`][] or a function with the same first
        five arguments. It gets the same key for $f$ and for $h$.
    - `params`: $\theta$, a tuple of arrays, or any other tree, such as a whole model.
        Its floating arrays are the parameters; all other leaves stay unchanged.
    - `dist_builder`: a function that returns the distribution: `dist_builder(*params)` if
        `params` is a tuple or a list, otherwise `dist_builder(params)`.
    - `key`: a seed or a key of `jax.random`.
    - `num_samples`: $N \ge 1$, a Python integer.
    - `control_variate_state`: the state that the previous call returned. Defaults to
        `None`, the initial state of the control variates above.
    - `estimate_cv_coeffs`: whether to estimate $\beta$, one for each array of
        parameters, by
        [`eqopt.monte_carlo.estimate_control_variate_coefficients`][], or to use 1.
        Defaults to `False`.
    - `estimate_cv_coeffs_num_samples`: the number of samples for the estimate of
        $\beta$, at least 2. They differ from the samples for the gradient. Defaults to
        20.

    **Returns:**

    A pair: a tree like the result of `grad_estimator`, with one estimate for each
    sample along the first axis, and the state for the next call. The samples of this
    call only affect the next state.

    **Raises:**

    The errors of `grad_estimator`; a `ValueError` if `cv` or `expected_cv` return
    anything other than one real number, or if `grad_estimator` returns anything other
    than a tree like the gradient, with arrays of shape `(num_samples, *param.shape)`.

    ??? cite "Reference"

        ```bibtex
        @article{mohamed2020monte,
            author = {Mohamed, Shakir and Rosca, Mihaela and Figurnov, Michael and
                      Mnih, Andriy},
            title = {{M}onte {C}arlo Gradient Estimation in Machine Learning},
            journal = {Journal of Machine Learning Research},
            volume = {21},
            number = {132},
            year = {2020},
        }
        ```
    """
    cv, expected_cv, update_state = control_variate_from_function(function)
    arrays = real_parameters(params)
    key, state = as_key(key), control_variate_state
    betas = jtu.tree_map(lambda p: jnp.ones((), wide_dtype(p.dtype)), arrays)
    if estimate_cv_coeffs:
        key, coeffs_key = jr.split(key)
        estimator = grad_estimator, params, dist_builder, coeffs_key
        number = estimate_cv_coeffs_num_samples
        arguments = function, control_variate_from_function, *estimator, number, state
        betas = estimate_control_variate_coefficients(*arguments)
    estimator = grad_estimator, params, dist_builder, key, num_samples
    samples, by_f, by_h = _estimates(function, cv, estimator, state)
    expected = lambda arrays: expected_cv(eqx.combine(arrays, params), state)
    expectation = lambda arrays: real_number("`expected_cv`", expected(arrays))
    by_expectation = jax.grad(expectation)(arrays)

    def combined(p: Array, f: Array, h: Array, expected: Array, beta: Array) -> Array:
        expected = jnp.broadcast_to(expected.astype(h.dtype), h.shape)
        return (f - beta.astype(h.dtype) * (h - expected)).astype(p.dtype)

    jacobians = jtu.tree_map(combined, arrays, by_f, by_h, by_expectation, betas)
    return jacobians, update_state(params, samples, state)


def estimate_control_variate_coefficients(
    function: Callable[[Any], Any],
    control_variate_from_function: Callable[[Callable[[Any], Any]], Any],
    grad_estimator: Callable[..., Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
    control_variate_state: PyTree = None,
    eps: RealScalarLike = 1e-3,
) -> PyTree:
    r"""Estimates the coefficients of a control variate that minimize the variance.

    With the estimates $F_{ni}$ and $H_{ni}$ of the derivatives of the expectations of $f$
    and of $h$ by component $i$ of an array of parameters, from sample $n$,

    $$\beta = \frac{\sum_i \operatorname{Cov}_n(F_{ni}, H_{ni})}
      {\sum_i \operatorname{Var}_n(H_{ni}) + \epsilon},$$

    which for $\epsilon = 0$ minimizes the sum over $i$ of the variances of
    $F_{ni} - \beta H_{ni}$.

    **Arguments:**

    - `function`, `control_variate_from_function`, `grad_estimator`, `params`,
        `dist_builder`, `key`, `control_variate_state`: the same as in
        [`eqopt.monte_carlo.control_variates_jacobians`][]. The state is not updated.
        For an unbiased gradient, use another key for the gradient.
    - `num_samples`: $N \ge 2$, a Python integer.
    - `eps`: $\epsilon \ge 0$, a number or a 0-d array. It should be small compared with
        the variances; otherwise, $\beta$ is too small. Defaults to 1e-3.

    **Returns:**

    A tree like the gradient with a 0-d array of at least float32 instead of each
    parameter. It is 0 where $H_{ni}$ does not vary at all. It counts as a constant in
    derivatives.

    **Raises:**

    The errors of [`eqopt.monte_carlo.control_variates_jacobians`][], and a `ValueError`
    if `num_samples` is less than 2 or `eps` is negative, not finite, or has axes.
    """
    check_number_in("eps", eps)
    cv, _, _ = control_variate_from_function(function)
    key, state = as_key(key), control_variate_state
    estimator = grad_estimator, params, dist_builder, key, num_samples
    _, by_f, by_h = _estimates(function, cv, estimator, state, low=2)

    def coefficient(f: Array, h: Array) -> Array:
        df, dh = (x - jnp.mean(x, axis=0, keepdims=True) for x in (f, h))
        covariance, variance = (jnp.sum(d * dh) / len(dh) for d in (df, dh))
        beta = covariance / (variance + jnp.asarray(eps, variance.dtype))
        return lax.stop_gradient(jnp.where(variance > 0, beta, 0))

    return jtu.tree_map(coefficient, by_f, by_h)


def _estimates(function, cv, estimator_and_arguments, state, low=1):
    """Draws the samples that the estimator uses with `key`, and estimates from them.

    Returns the samples, as constants, and the wide estimates for the expectations of
    `function` and of the variate. `low` is the least number of samples.
    """
    grad_estimator, *arguments = estimator_and_arguments
    params, dist_builder, key, num_samples = arguments
    arrays, dist = real_parameters(params), build(dist_builder, params)
    keys = sample_keys(key, num_samples, low)
    samples = lax.stop_gradient(jax.vmap(dist.sample)(keys))
    value = lambda params, x: real_number("`cv`", cv(params, x, state))
    fixed = eqx.combine(lax.stop_gradient(arrays), params)
    of_each = lambda p: jax.ShapeDtypeStruct((num_samples, *p.shape), p.dtype)
    like = jtu.tree_map(of_each, arrays)
    shapes = lambda t: [(path, np.shape(x)) for path, x in jtu.tree_leaves_with_path(t)]

    def estimate(function: Callable[[Any], Any]) -> PyTree:
        found = grad_estimator(function, *arguments)
        if shapes(found) != shapes(like):
            difference = disagreement("grad_estimator(...)", found, "params", like)
            raise InputError(f"{difference} Return a row for each sample.")
        return jtu.tree_map(lambda j: at_least_float32(jnp.asarray(j)), found)

    by_params = lambda x: jax.grad(lambda a: value(eqx.combine(a, params), x))(arrays)
    of_params = jax.vmap(by_params)(samples)
    of_samples = estimate(lambda x: value(fixed, x))
    add = lambda j, d: j + d.astype(j.dtype)
    by_h = jtu.tree_map(add, of_samples, of_params)
    return samples, estimate(function), by_h


#
# The curvature at the mean
#


def control_delta_method(
    function: Callable[[Any], Any], dist_builder: Callable[..., Any] = MultiNormalDiag
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    r"""A control variate for normal samples: the function's second-order expansion.

    With the mean $\mu$ and the standard deviations $\sigma$ of the distribution,
    $g = \nabla f(\mu)$ and $H = \nabla^2 f(\mu)$,

    $$h(x) = f(\mu) + g^\top (x - \mu) + \tfrac12 (x - \mu)^\top H (x - \mu), \qquad
      \mathbb{E}\, h(x) = f(\mu) + \tfrac12 \sum_i H_{ii}\, \sigma_i^2.$$

    If $f$ is quadratic, then $h = f$, and a gradient with this control variate is
    exact, for every estimator. Otherwise, it helps if $\sigma$ is small compared with
    the distances over which the curvature of $f$ changes, and harms if $\sigma$ is
    large: in that case, estimate the coefficients. It computes the Hessian, of $d^2$
    numbers, once.

    Pass it to [`eqopt.monte_carlo.control_variates_jacobians`][] directly.

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real floating-point
        number. It must work under `jax.hessian`.
    - `dist_builder`: a function that returns an
        [`eqopt.monte_carlo.MultiNormalDiag`][]: `dist_builder(*params)` if the
        parameters are a tuple or a list, otherwise `dist_builder(params)`. Defaults to
        that class itself, for parameters `(loc, log_scale)`. To use another one, pass
        `functools.partial(control_delta_method, dist_builder=dist_builder)`.

    **Returns:**

    A tuple of three functions:

    - `cv(params, x, state)` is $h(x)$ of one sample, in at least float32.
    - `expected_cv(params, state)` is $\mathbb{E}\, h(x)$, in at least float32.
    - `update_state(params, samples, state)` returns `state` unchanged.

    In derivatives with respect to `params`, the point $\mu$ of the expansion is a
    constant: $h$ has no derivatives, and the derivatives of its expectation are $g$
    with respect to the mean and $H_{ii}\, \sigma_i$ with respect to the scale.

    **Raises:**

    The three functions raise a `ValueError` if `function` does not return a real
    number or returns an integer, or if the distribution is another one.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{paisley2012variational,
            author = {Paisley, John and Blei, David M. and Jordan, Michael I.},
            title = {Variational {B}ayesian Inference with Stochastic Search},
            booktitle = {International Conference on Machine Learning},
            year = {2012},
        }
        ```
    """
    value = real_function(function, is_smooth=True)

    def expansion(params: PyTree) -> tuple[Any, Any, Any, Any, Any]:
        dist = check_normal(build(dist_builder, params))
        point = jnp.ravel(lax.stop_gradient(dist.loc))
        of_vector = lambda x: value(x.reshape(jnp.shape(dist.loc)))
        y, g = jax.value_and_grad(of_vector)(point)
        hessian = jax.hessian(of_vector)(point)
        dtype = common_dtype(y.dtype, point.dtype)
        y, g, hessian, point = (x.astype(dtype) for x in (y, g, hessian, point))
        return dist, y, g, hessian, point

    def cv(params: PyTree, x: Any, state: Any = None) -> Array:
        _, y, g, hessian, point = expansion(params)
        d = jnp.ravel(x).astype(point.dtype) - point
        return y + _dot(g, d) + _dot(d, _dot(hessian, d)) / 2

    def expected_cv(params: PyTree, state: Any = None) -> Array:
        dist, y, g, hessian, point = expansion(params)
        wide = lambda x: jnp.ravel(x).astype(point.dtype)
        # Zero, with the derivative of the mean.
        d = wide(dist.loc) - point
        variances = jnp.exp(2 * wide(dist.log_scale))
        curvature = _dot(d, _dot(hessian, d)) + _dot(jnp.diag(hessian), variances)
        return y + _dot(g, d) + curvature / 2

    def update_state(params: PyTree, samples: Any, state: Any = None) -> Any:
        return state

    return cv, expected_cv, update_state


# On an accelerator, the default precision would leave three digits.
_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


#
# The mean of the function so far
#


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
    check_interval("decay", decay, 0, 1)
    value = real_function(function)

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

        average, weight = averaged(state.average, mean), averaged(state.weight, 1)
        return MovingAvgBaselineState(average, weight, safe_increment(state.count))

    return cv, expected_cv, update_state
