"""Estimates of gradients that use a function with a known expectation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array

from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import disagreement
from .._types import Key, PyTree, RealScalarLike
from ..linear_algebra._arguments import check_scalar
from ..numerics._numerics import at_least_float32, wide_dtype
from ._arguments import build, real_number, real_parameters, sample_keys


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
    owner = "control_variates_jacobians"
    cv, expected_cv, update_state = control_variate_from_function(function)
    arrays = real_parameters(owner, params)
    key, state = as_key(key), control_variate_state
    betas = jtu.tree_map(lambda p: jnp.ones((), wide_dtype(p.dtype)), arrays)
    if estimate_cv_coeffs:
        key, coeffs_key = jr.split(key)
        betas = estimate_control_variate_coefficients(
            function,
            control_variate_from_function,
            grad_estimator,
            params,
            dist_builder,
            coeffs_key,
            estimate_cv_coeffs_num_samples,
            state,
        )
    samples = _samples(owner, params, dist_builder, key, num_samples)
    by_f, by_h = _jacobians(
        owner, function, cv, grad_estimator, params, dist_builder, key, samples, state
    )
    expectation = lambda arrays: real_number(
        owner, "`expected_cv`", expected_cv(eqx.combine(arrays, params), state)
    )
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
    r"""The coefficients of a control variate that minimize the variance.

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
    owner = "estimate_control_variate_coefficients"
    check_scalar(owner, "eps", eps)
    cv, _, _ = control_variate_from_function(function)
    key, state = as_key(key), control_variate_state
    samples = _samples(owner, params, dist_builder, key, num_samples, low=2)
    by_f, by_h = _jacobians(
        owner, function, cv, grad_estimator, params, dist_builder, key, samples, state
    )

    def coefficient(f: Array, h: Array) -> Array:
        df, dh = (x - jnp.mean(x, axis=0, keepdims=True) for x in (f, h))
        covariance, variance = (jnp.sum(d * dh) / len(dh) for d in (df, dh))
        beta = covariance / (variance + jnp.asarray(eps, variance.dtype))
        return lax.stop_gradient(jnp.where(variance > 0, beta, 0))

    return jtu.tree_map(coefficient, by_f, by_h)


def _samples(owner, params, dist_builder, key, num_samples, low=1):
    """The samples that the estimators use with the same key, as constants."""
    dist = build(dist_builder, params)
    keys = sample_keys(owner, key, num_samples, low)
    return lax.stop_gradient(jax.vmap(dist.sample)(keys))


def _jacobians(
    owner, function, cv, grad_estimator, params, dist_builder, key, samples, state
):
    """The wide estimates for the expectations of `function` and of the variate."""
    arrays = real_parameters(owner, params)
    num_samples = len(jtu.tree_leaves(samples)[0])
    value = lambda params, x: real_number(owner, "`cv`", cv(params, x, state))
    fixed = eqx.combine(lax.stop_gradient(arrays), params)

    def estimate(function: Callable[[Any], Any]) -> PyTree:
        found = grad_estimator(function, params, dist_builder, key, num_samples)
        _check_jacobians(owner, found, arrays, num_samples)
        return jtu.tree_map(lambda j: at_least_float32(jnp.asarray(j)), found)

    by_params = lambda x: jax.grad(lambda a: value(eqx.combine(a, params), x))(arrays)
    by_h = jtu.tree_map(
        lambda j, d: j + d.astype(j.dtype),
        estimate(lambda x: value(fixed, x)),
        jax.vmap(by_params)(samples),
    )
    return estimate(function), by_h


def _check_jacobians(owner: str, found: Any, arrays: PyTree, num_samples: int) -> None:
    like = jtu.tree_map(
        lambda p: jax.ShapeDtypeStruct((num_samples, *p.shape), p.dtype), arrays
    )
    here, there = (
        [(path, np.shape(x)) for path, x in jtu.tree_leaves_with_path(tree)]
        for tree in (found, like)
    )
    if here != there:
        difference = disagreement("grad_estimator(...)", found, "the gradient", like)
        raise InputError(
            owner,
            f"{difference} It must have an array of shape `(num_samples, *param.shape)` "
            "for each parameter.",
        )
