"""Gradients of expectations: by the score, along paths, and as two expectations."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arguments.checks import check_integer
from .._arguments.construction import Module
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import briefly, map_parameters
from .._types import Key, PyTree
from ..numerics._numerics import common_dtype, wide_dtype


class AbstractDistribution(Module):
    """The interface of a distribution for the functions of this namespace.

    Any other object with these two methods also works, without subclassing.
    """

    @abc.abstractmethod
    def sample(self, key: Any) -> PyTree:
        """One sample: an array, or a tree of arrays.

        It must work under `jax.vmap` over keys. If it can be differentiated with
        respect to the parameters, you can use
        [`eqopt.monte_carlo.pathwise_jacobians`][].

        **Arguments:**

        - `key`: a key of `jax.random`.
        """

    @abc.abstractmethod
    def log_prob(self, x: Any) -> Array:
        """The logarithm of the density, or of the probability, of one sample: a number.

        **Arguments:**

        - `x`: a sample.
        """


class MultiNormalDiag(AbstractDistribution):
    r"""The normal distribution with independent components.

    $$p(x) = \prod_i \frac{1}{\sqrt{2 \pi}\, \sigma_i}
      \exp\!\Big(-\frac{(x_i - \mu_i)^2}{2 \sigma_i^2}\Big),
      \qquad \sigma_i = e^{s_i}.$$

    **Arguments:**

    - `loc`: $\mu$, a real array of floating dtype and any shape, usually `(d,)`.
    - `log_scale`: $s$, the logarithm of the standard deviation, an array of the same
        shape.

    **Raises:**

    A `TypeError` if one of them is not an array of real floating dtype, or if their
    shapes differ.
    """

    loc: Float[Array | np.ndarray, "*shape"]
    log_scale: Float[Array | np.ndarray, "*shape"]

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> Array:
        r"""Independent samples $\mu + \sigma \epsilon$, with $\epsilon$ standard normal.

        They can be differentiated with respect to the parameters.

        **Arguments:**

        - `key`: a seed or a key of `jax.random`.
        - `sample_shape`: the shape of the leading axes of samples. Defaults to `()`,
            which means one sample.

        **Returns:**

        An array of shape `(*sample_shape, *loc.shape)`, computed in at least float32,
        in the dtype to which the dtypes of the parameters promote.
        """
        loc, scale = self.wide()
        key = as_key(key)
        shape = (*sample_shape, *loc.shape)
        noise = jr.normal(key, shape, loc.dtype)
        x = jnp.broadcast_to(loc, shape) + jnp.broadcast_to(scale, shape) * noise
        return x.astype(self.sample_dtype)

    def log_prob(self, x: Any) -> Float[Array, "..."]:
        """The logarithm of the density at each of the samples `x`.

        **Arguments:**

        - `x`: an array of shape `(..., *loc.shape)`.

        **Returns:**

        An array with the shape of the leading axes, of at least float32.

        **Raises:**

        A `ValueError` if the last axes of `x` differ from the axes of `loc`.
        """
        loc, scale = self.wide()
        shape, split = np.shape(x), np.ndim(x) - loc.ndim

        dtype = common_dtype(jnp.result_type(x), loc.dtype)
        spread = lambda value: jnp.broadcast_to(value.astype(dtype), shape)
        z = (jnp.asarray(x, dtype) - spread(loc)) / spread(scale)
        constant = jnp.sum(jnp.asarray(self.log_scale).astype(dtype))
        constant = constant + loc.size * math.log(2 * math.pi) / 2
        return -jnp.sum(z * z, axis=tuple(range(split, z.ndim))) / 2 - constant

    @property
    def params(self) -> tuple[Any, Any]:
        """The pair of `loc` and `log_scale`."""
        return self.loc, self.log_scale

    @property
    def mean(self) -> Any:
        """The expectation, which is `loc`."""
        return self.loc

    @property
    def scale(self) -> Any:
        """The standard deviations, an array like `log_scale`."""
        return jnp.exp(self.log_scale)

    @property
    def covariance(self) -> Array:
        """The covariance of the components, of shape `(*loc.shape, *loc.shape)`.

        For a vector it is a diagonal matrix.
        """
        variances = jnp.exp(2 * self.log_scale)
        return jnp.diag(variances.ravel()).reshape(variances.shape * 2)

    @property
    def sample_dtype(self) -> np.dtype:
        """The dtype of samples, to which the dtypes of the parameters promote."""
        return common_dtype(*map(jnp.result_type, self.params))

    def wide(self) -> tuple[Array, Array]:
        """$\\mu$ and $\\sigma$ in the dtype to compute in, at least float32."""
        loc, log_scale = jnp.asarray(self.loc), jnp.asarray(self.log_scale)
        dtype = wide_dtype(self.sample_dtype)
        return loc.astype(dtype), jnp.exp(log_scale.astype(dtype))


#
# The arguments of all estimators
#


def sample_keys(key: Key, num_samples: Any, low: int = 1) -> Any:
    """A key for each sample."""
    return jr.split(as_key(key), check_integer("num_samples", num_samples, low))


def real_parameters(params: PyTree) -> PyTree:
    """The arrays of `params` to differentiate with respect to; `None` for the rest."""
    arrays = map_parameters(jnp.asarray, params)
    leaves = jtu.tree_leaves(arrays)
    if not leaves or any(map(jnp.iscomplexobj, leaves)):
        raise InputError(
            "`params` must have floating-point arrays, and none that is complex, but "
            f"is {briefly(params)}. Convert numbers with `jnp.asarray(x, jnp.float32)`."
        )
    return arrays


def build(dist_builder: Callable[..., Any], params: PyTree) -> Any:
    """The distribution of `params`: a tuple or a list is unpacked into arguments."""
    spread = isinstance(params, tuple | list)
    return dist_builder(*params) if spread else dist_builder(params)


def real_number(name: str, y: Any) -> Array:
    """`y` in at least float32; raises an error unless it is one real number."""
    if not eqx.is_array_like(y) or np.shape(y) != () or jnp.iscomplexobj(y):
        raise InputError(
            f"{name} must be one real number, but is {eqx.tree_pformat(y)}."
        )
    return jnp.asarray(y, wide_dtype(jnp.result_type(y)))


def real_function(
    function: Callable[[Any], Any], is_smooth: bool = False
) -> Callable[[Any], Array]:
    """`function` of one sample, its values checked, in at least float32.

    `is_smooth`: whether to reject integers, which have no derivative.
    """

    def value(x: Any) -> Array:
        y = function(x)
        if is_smooth:
            check_smooth("`function`", y)
        return real_number("the result of `function` for one sample", y)

    return value


def check_smooth(name: str, x: PyTree) -> None:
    """Raises an error if `x` has no floating-point numbers, as for discrete samples."""
    is_smooth = lambda leaf: isinstance(leaf, float) or eqx.is_inexact_array(leaf)
    if not any(map(is_smooth, jtu.tree_leaves(x))):
        problem = f"{name} must be differentiated, but gives {eqx.tree_pformat(x)}."
        fix = "Use `score_function_jacobians`, which needs no derivatives."
        raise InputError(f"{problem} {fix}")


def check_normal(dist: Any) -> MultiNormalDiag:
    """`dist`; raises an error if it is another distribution."""
    if not isinstance(dist, MultiNormalDiag):
        raise InputError(
            f"the distribution must be a `MultiNormalDiag`, but is {briefly(dist)}. For "
            "others, use `score_function_jacobians` or `pathwise_jacobians`, and the "
            "control variate `moving_avg_baseline`."
        )
    return dist


#
# Estimators
#


def score_function_jacobians(
    function: Callable[[Any], Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
) -> PyTree:
    r"""Estimates a gradient with the score function, also known as REINFORCE.

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
    arrays, value = real_parameters(params), real_function(function)

    def dist(arrays: PyTree) -> Any:
        return build(dist_builder, eqx.combine(arrays, params))

    def jacobian(key: Any) -> PyTree:
        x = lax.stop_gradient(dist(arrays).sample(key))
        y = value(x)

        # The product is differentiated, because the score itself may exceed the range of
        # a narrow parameter.
        def weighted(arrays: PyTree) -> Array:
            log_prob = dist(arrays).log_prob(x)
            log_prob = real_number("`log_prob` of one sample", log_prob)
            dtype = common_dtype(y.dtype, log_prob.dtype)
            return y.astype(dtype) * log_prob.astype(dtype)

        return jax.grad(weighted)(arrays)

    return jax.vmap(jacobian)(sample_keys(key, num_samples))


def pathwise_jacobians(
    function: Callable[[Any], Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
) -> PyTree:
    r"""Estimates a gradient along paths, also known as the reparametrization trick.

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
    arrays = real_parameters(params)
    value = real_function(function, is_smooth=True)

    def jacobian(key: Any) -> PyTree:
        def at_sample(arrays: PyTree) -> Array:
            x = build(dist_builder, eqx.combine(arrays, params)).sample(key)
            check_smooth("`sample`", x)
            return value(x)

        return jax.grad(at_sample)(arrays)

    return jax.vmap(jacobian)(sample_keys(key, num_samples))


def measure_valued_jacobians(
    function: Callable[[Any], Any],
    params: PyTree,
    dist_builder: Callable[..., Any],
    key: Key,
    num_samples: int,
    coupling: bool = True,
) -> PyTree:
    r"""Estimates a gradient by measure-valued derivatives, for normal distributions.

    The derivative of a density is a multiple of the difference of two densities,

    $$\nabla_\theta\, \mathbb{E}_{p(x; \theta)} f(x) = c_\theta\, \big(
      \mathbb{E}_{p^+(x; \theta)} f(x) - \mathbb{E}_{p^-(x; \theta)} f(x)\big),$$

    one component of the parameters after the other. For the normal distribution, see
    [`eqopt.monte_carlo.measure_valued_estimation_mean`][] and
    [`eqopt.monte_carlo.measure_valued_estimation_std`][]. As with the score function,
    $f$ need not be differentiable, but the variance is smaller. The cost is $4 d$
    values of $f$ per sample with $d$ components, which are all computed at once.

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number. It must work
        under `jax.vmap`, and may be a whole model. If it depends on $\theta$ directly,
        that part of the derivative is not included.
    - `params`, `key`, `num_samples`: the same as in
        [`eqopt.monte_carlo.score_function_jacobians`][].
    - `dist_builder`: a function that returns the distribution: `dist_builder(*params)`
        if `params` is a tuple or a list, otherwise `dist_builder(params)`. It must be
        an [`eqopt.monte_carlo.MultiNormalDiag`][], which can depend on the parameters
        in any way.
    - `coupling`: whether the samples of $p^+$ and $p^-$ depend on each other, which
        usually reduces the variance. Defaults to `True`.

    **Returns:**

    A tree like the gradient: instead of each parameter an array of its dtype and of
    shape `(num_samples, *param.shape)`, with one estimate for each sample, and `None`
    for all other leaves. The mean along the first axis is the estimate of the gradient.

    **Raises:**

    The errors of [`eqopt.monte_carlo.score_function_jacobians`][], and a `ValueError` if
    the distribution is another one.

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
    arrays = real_parameters(params)

    def loc_and_log_scale(arrays: PyTree) -> tuple[Any, Any]:
        dist = build(dist_builder, eqx.combine(arrays, params))
        return check_normal(dist).params

    values, pull_back = jax.vjp(loc_and_log_scale, arrays)
    dist = MultiNormalDiag(*values)
    by_mean, by_std = (
        _jacobians(function, dist, of_part, num_samples, coupling, pair)
        for of_part, pair in zip(
            jr.split(as_key(key)), (_weibull_pair, _maxwell_pair), strict=True
        )
    )
    # By the chain rule: the derivative of the scale with respect to its logarithm is
    # the scale. Both are wide: in a narrow dtype, a division by a small scale may
    # overflow.
    _, scale = dist.wide()
    by_log_scale = jax.vmap(lambda j: j * scale.astype(j.dtype))(by_std)
    narrow = lambda j, x: j.astype(x.dtype)
    cotangents = jtu.tree_map(narrow, (by_mean, by_log_scale), values)
    (jacobians,) = jax.vmap(pull_back)(cotangents)
    return jacobians


def measure_valued_estimation_mean(
    function: Callable[[Any], Any],
    dist: MultiNormalDiag,
    key: Key,
    num_samples: int,
    coupling: bool = True,
) -> Float[Array, "samples ..."]:
    r"""Estimates the measure-valued gradient with respect to the mean.

    $$\frac{\partial}{\partial \mu_i} \mathbb{E} f(x) = \frac{1}{\sqrt{2 \pi}\, \sigma_i}
      \big(\mathbb{E} f(x^+) - \mathbb{E} f(x^-)\big),$$

    where $x^\pm$ is $x$ with component $i$ replaced by $\mu_i \pm \sigma_i W_i$, and
    $W_i$ has the density $w e^{-w^2 / 2}$ of a Weibull distribution with shape 2 and
    scale $\sqrt 2$. With coupling, $W_i$ is the same for $x^+$ and $x^-$; otherwise,
    they are independent. All other components are shared in either case. Coupling makes
    the variance vanish where $f$ is even about the mean, and doubles it where $f$ is
    linear.

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number. It must work
        under `jax.vmap`.
    - `dist`: an [`eqopt.monte_carlo.MultiNormalDiag`][].
    - `key`: a seed or a key of `jax.random`.
    - `num_samples`: $N \ge 1$, a Python integer.
    - `coupling`: whether $x^+$ and $x^-$ are coupled. Defaults to `True`.

    **Returns:**

    An array of shape `(num_samples, *loc.shape)` and the dtype of samples, whose mean
    along the first axis is the estimate.

    **Raises:**

    A `ValueError` if `num_samples` is not a positive Python integer, if `function` does
    not return a real number, or if `dist` is another distribution.
    """
    wide = _jacobians(function, dist, key, num_samples, coupling, _weibull_pair)
    return wide.astype(dist.sample_dtype)


def measure_valued_estimation_std(
    function: Callable[[Any], Any],
    dist: MultiNormalDiag,
    key: Key,
    num_samples: int,
    coupling: bool = True,
) -> Float[Array, "samples ..."]:
    r"""Estimates the measure-valued gradient with respect to the scale.

    $$\frac{\partial}{\partial \sigma_i} \mathbb{E} f(x) = \frac{1}{\sigma_i}
      \big(\mathbb{E} f(x^+) - \mathbb{E} f(x^-)\big),$$

    where $x^+$ is $x$ with component $i$ replaced by $\mu_i + \sigma_i M_i$, and $M_i$
    has the density $\propto m^2 e^{-m^2 / 2}$ of the double-sided Maxwell distribution.
    For $x^-$, the component is a normal sample. With coupling, that sample is $U_i M_i$
    with $U_i$ uniform in $[0, 1)$, which is also normal; otherwise, it is independent
    of $M_i$. All other components are shared in either case.

    The derivative is with respect to the scale $\sigma_i$, not its logarithm.

    **Arguments:**

    - `function`: $f$, a function of one sample that returns a real number. It must work
        under `jax.vmap`.
    - `dist`: an [`eqopt.monte_carlo.MultiNormalDiag`][].
    - `key`: a seed or a key of `jax.random`.
    - `num_samples`: $N \ge 1$, a Python integer.
    - `coupling`: whether $x^+$ and $x^-$ are coupled. Defaults to `True`.

    **Returns:**

    An array of shape `(num_samples, *loc.shape)` and the dtype of samples, whose mean
    along the first axis is the estimate.

    **Raises:**

    A `ValueError` if `num_samples` is not a positive Python integer, if `function` does
    not return a real number, or if `dist` is another distribution.
    """
    wide = _jacobians(function, dist, key, num_samples, coupling, _maxwell_pair)
    return wide.astype(dist.sample_dtype)


def _weibull_pair(key, shape, dtype, coupling):
    """Positive and negative samples for the mean, and the weights of their difference."""
    # Half the square of such a sample is exponentially distributed.
    weibull = lambda key: jnp.sqrt(2 * jr.exponential(key, shape, dtype))
    up_key, down_key = jr.split(key)
    up = weibull(up_key)
    return up, -(up if coupling else weibull(down_key)), 1 / math.sqrt(2 * math.pi)


def _maxwell_pair(key, shape, dtype, coupling):
    """Positive and negative samples for the scale, and weights of their difference."""
    up_key, down_key = jr.split(key)
    up = jr.double_sided_maxwell(up_key, 0.0, 1.0, shape, dtype)
    if coupling:
        return up, up * jr.uniform(down_key, shape, dtype), 1.0
    return up, jr.normal(down_key, shape, dtype), 1.0


def _jacobians(function, dist, key, num_samples, coupling, pair):
    """An estimate for each sample, in at least float32."""
    value = real_function(function)
    loc, scale = dist.wide()

    def values(x: Array, z: Array) -> Array:
        """`function` at `x` with one component at a time replaced by the one for `z`."""
        other = (loc + scale * z).astype(x.dtype)
        is_replaced = jnp.eye(x.size, dtype=bool)
        rows = jnp.where(is_replaced, other.reshape(1, -1), x.reshape(1, -1))
        of_rows = jax.vmap(lambda row: value(row.reshape(x.shape)))(rows)
        return of_rows.reshape(x.shape)

    def jacobian(key: Any) -> Array:
        shared_key, pair_key = jr.split(key)
        x = dist.sample(shared_key)
        plus, minus, weight = pair(pair_key, x.shape, loc.dtype, coupling)
        difference = values(x, plus) - values(x, minus)
        return weight * difference / scale.astype(difference.dtype)

    return jax.vmap(jacobian)(sample_keys(key, num_samples))
