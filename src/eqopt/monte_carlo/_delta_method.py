"""A control variate that uses the function's slope and curvature at the mean."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._types import PyTree
from ..numerics._numerics import common_dtype
from ._arguments import build, real_function
from ._distribution import MultiNormalDiag, check_normal


# On an accelerator, the default precision would leave three digits.
_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def control_delta_method(
    function: Callable[[Any], Any],
    dist_builder: Callable[..., Any] = MultiNormalDiag,
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
    owner = "control_delta_method"
    value = real_function(owner, function, is_smooth=True)

    def expansion(params: PyTree) -> tuple[Any, Any, Any, Any, Any]:
        dist = check_normal(owner, build(dist_builder, params))
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
