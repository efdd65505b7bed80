"""The arguments of all estimators, and the normal distribution."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from .._arguments.checks import check_integer
from .._arguments.construction import Module
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import briefly, map_parameters
from .._types import Key, PyTree
from ..numerics._numerics import common_dtype, wide_dtype


def sample_keys(owner: str, key: Key, num_samples: Any, low: int = 1) -> Any:
    """A key for each sample."""
    return jr.split(as_key(key), check_integer(owner, "num_samples", num_samples, low))


def real_parameters(owner: str, params: PyTree) -> PyTree:
    """The arrays of `params` to differentiate with respect to; `None` for the rest."""
    arrays = map_parameters(jnp.asarray, params)
    leaves = jtu.tree_leaves(arrays)
    if not leaves or any(map(jnp.iscomplexobj, leaves)):
        fix = "Convert numbers with `jnp.asarray(x, jnp.float32)`."
        raise InputError(
            owner,
            "`params` must have floating-point arrays, and none that is complex, but "
            f"is {briefly(params)}. {fix}",
        )
    return arrays


def build(dist_builder: Callable[..., Any], params: PyTree) -> Any:
    """The distribution of `params`: a tuple or a list is unpacked into arguments."""
    spread = isinstance(params, tuple | list)
    return dist_builder(*params) if spread else dist_builder(params)


def real_number(owner: str, name: str, y: Any) -> Array:
    """`y` in at least float32; raises an error unless it is one real number."""
    if not eqx.is_array_like(y) or np.shape(y) != () or jnp.iscomplexobj(y):
        raise InputError(
            owner, f"{name} must be one real number, but is {eqx.tree_pformat(y)}."
        )
    return jnp.asarray(y, wide_dtype(jnp.result_type(y)))


def real_function(
    owner: str, function: Callable[[Any], Any], is_smooth: bool = False
) -> Callable[[Any], Array]:
    """`function` of one sample, its values checked, in at least float32.

    `is_smooth`: whether to reject integers, which have no derivative.
    """

    def value(x: Any) -> Array:
        y = function(x)
        if is_smooth:
            check_smooth(owner, "`function`", y)
        return real_number(owner, "the result of `function` for one sample", y)

    return value


def check_smooth(owner: str, name: str, x: PyTree) -> None:
    """Raises an error if `x` has no floating-point numbers, as for discrete samples."""
    is_smooth = lambda leaf: isinstance(leaf, float) or eqx.is_inexact_array(leaf)
    if not any(map(is_smooth, jtu.tree_leaves(x))):
        problem = f"{name} must be differentiated, but gives {eqx.tree_pformat(x)}."
        fix = "Use `score_function_jacobians`, which needs no derivatives."
        raise InputError(owner, f"{problem} {fix}")


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


def check_normal(owner: str, dist: Any) -> MultiNormalDiag:
    """`dist`; raises an error if it is another distribution."""
    if not isinstance(dist, MultiNormalDiag):
        raise InputError(
            owner,
            f"the distribution must be a `MultiNormalDiag`, but is {briefly(dist)}. For "
            "others, use `score_function_jacobians` or `pathwise_jacobians`, and the "
            "control variate `moving_avg_baseline`.",
        )
    return dist
