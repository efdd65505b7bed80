"""Gradients of expectations by the score function, and along the paths of samples."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._errors import InputError
from .._types import Key, PyTree
from ..numerics._numerics import common_dtype
from ._arguments import (
    build,
    real_function,
    real_number,
    real_parameters,
    sample_keys,
)


def score_function_jacobians(
    function: Callable[[Any], Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
) -> PyTree:
    r"""The score function estimator of a gradient, also known as REINFORCE.

    $$\nabla_\theta\, \mathbb{E}_{p(x; \theta)} f(x) = \mathbb{E}_{p(x; \theta)}\big[
      f(x)\, \nabla_\theta \log p(x; \theta)\big] \approx \frac1N \sum_{n=1}^N
      f(x_n)\, \nabla_\theta \log p(x_n; \theta).$$

    $f$ may be discontinuous, and $x$ may be discrete. The price is a large variance,
    which [`eqopt.monte_carlo.control_variates_jacobians`][] reduces. All samples are
    computed at once, in as much memory as $N$ gradients.

    !!! example

        ```python
        params = (jnp.zeros(3), jnp.zeros(3))
        jacobians = eqopt.monte_carlo.score_function_jacobians(
            lambda x: jnp.sum(x > 1),
            params,
            eqopt.monte_carlo.MultiNormalDiag,
            jax.random.key(0),
            num_samples=1000,
        )
        grads = jax.tree.map(lambda j: jnp.mean(j, axis=0), jacobians)
        ```

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number. It must work
        under `jax.vmap`, and may be a whole model. If it depends on $\theta$ directly,
        that part of the derivative is not included.
    - `params`: $\theta$, a tuple of arrays, or any other tree, such as a whole model.
        Its floating arrays are the parameters; all other leaves stay unchanged.
    - `dist_builder`: a function that returns the distribution: `dist_builder(*params)`
        if `params` is a tuple or a list, otherwise `dist_builder(params)`. A
        distribution is any object with the methods of
        [`eqopt.monte_carlo.AbstractDistribution`][], such as
        [`eqopt.monte_carlo.MultiNormalDiag`][].
    - `key`: a seed or a key of `jax.random`. It determines the samples.
    - `num_samples`: $N \ge 1$, a Python integer.

    **Returns:**

    A tree like the gradient: instead of each parameter an array of its dtype and of
    shape `(num_samples, *param.shape)`, with one estimate for each sample, and `None`
    for all other leaves. The mean along the first axis is the estimate of the gradient,
    and the variance along it gives the error.

    **Raises:**

    A `ValueError` if `num_samples` is not a positive Python integer, or if `function`
    or `log_prob` does not return a real number, or if `params` has no floating arrays
    or has complex ones.

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
    owner = "score_function_jacobians"
    arrays, value = real_parameters(owner, params), real_function(owner, function)

    def dist(arrays: PyTree) -> Any:
        return build(dist_builder, eqx.combine(arrays, params))

    def jacobian(key: Any) -> PyTree:
        x = lax.stop_gradient(dist(arrays).sample(key))
        y = value(x)

        # The product is differentiated, because the score itself may exceed the range of
        # a narrow parameter.
        def weighted(arrays: PyTree) -> Array:
            log_prob = dist(arrays).log_prob(x)
            log_prob = real_number(owner, "`log_prob` of one sample", log_prob)
            dtype = common_dtype(y.dtype, log_prob.dtype)
            return y.astype(dtype) * log_prob.astype(dtype)

        return jax.grad(weighted)(arrays)

    return jax.vmap(jacobian)(sample_keys(owner, key, num_samples))


def pathwise_jacobians(
    function: Callable[[Any], Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
) -> PyTree:
    r"""The pathwise estimator of a gradient, also known as the reparametrization trick.

    With samples $x = g(\epsilon; \theta)$, where $\epsilon$ does not depend on $\theta$,

    $$\nabla_\theta\, \mathbb{E}_{p(x; \theta)} f(x) = \mathbb{E}_{p(\epsilon)}
      \nabla_\theta f(g(\epsilon; \theta)) \approx \frac1N \sum_{n=1}^N
      \nabla_\theta f(g(\epsilon_n; \theta)).$$

    It requires the derivative of $f$, which must not jump, and a distribution whose
    samples can be differentiated with respect to its parameters. If $f$ is smooth, its
    variance is small, even in many dimensions.

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real floating-point
        number. It must work under `jax.vmap` and `jax.grad`, and may be a whole model.
        If it depends on $\theta$ directly, that part of the derivative is not included.
    - `params`, `dist_builder`, `key`, `num_samples`: the same as in
        [`eqopt.monte_carlo.score_function_jacobians`][]. Only the `sample` method of
        the distribution is used.

    **Returns:**

    A tree like the gradient: instead of each parameter an array of its dtype and of
    shape `(num_samples, *param.shape)`, with one estimate for each sample, and `None`
    for all other leaves. The mean along the first axis is the estimate of the gradient.

    **Raises:**

    The errors of [`eqopt.monte_carlo.score_function_jacobians`][], and a `ValueError` if
    samples, or the results of `function`, are integers.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2014auto,
            author = {Kingma, Diederik P. and Welling, Max},
            title = {Auto-Encoding Variational {B}ayes},
            booktitle = {International Conference on Learning Representations},
            year = {2014},
        }
        ```
    """
    owner = "pathwise_jacobians"
    arrays = real_parameters(owner, params)
    value = real_function(owner, function, is_smooth=True)

    def jacobian(key: Any) -> PyTree:
        def at_sample(arrays: PyTree) -> Array:
            x = build(dist_builder, eqx.combine(arrays, params)).sample(key)
            if not any(map(eqx.is_inexact_array, jtu.tree_leaves(x))):
                raise InputError(
                    owner,
                    f"samples are differentiated, but are {eqx.tree_pformat(x)}. For "
                    "discrete ones, use `score_function_jacobians`.",
                )
            return value(x)

        return jax.grad(at_sample)(arrays)

    return jax.vmap(jacobian)(sample_keys(owner, key, num_samples))
