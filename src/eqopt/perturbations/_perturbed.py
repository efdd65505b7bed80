"""The mean of a function over perturbations of its argument, with its derivatives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, DTypeLike, Float

from .._arguments.checks import check_integer, check_interval
from .._arguments.construction import Module
from .._errors import InputError, naming
from .._trees.keys import as_key, split_like
from .._trees.leaves import briefly, map_parameters
from .._types import Key, PyTree, RealScalarLike
from ..numerics._numerics import at_least_float32, common_dtype, wide_dtype


class Normal(Module):
    r"""The standard normal distribution, with density $\propto e^{-z^2 / 2}$.

    Its mean is 0, so the perturbation does not change a linear function.
    """

    def sample(
        self,
        key: Any,
        sample_shape: tuple[int, ...] = (),
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "..."]:
        """Independent samples, an array of shape `sample_shape`."""
        return jr.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The logarithm of the density at each of `inputs`, up to a constant."""
        return -inputs * inputs / 2


class Gumbel(Module):
    r"""The standard Gumbel distribution, with density $e^{-z - e^{-z}}$.

    With this noise, the perturbed one-hot argmax of $x$ is the softmax of $x / \sigma$.
    Its mean is not 0 but Euler's constant, 0.577.
    """

    def sample(
        self,
        key: Any,
        sample_shape: tuple[int, ...] = (),
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "..."]:
        """Independent samples, an array of shape `sample_shape`."""
        return jr.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The logarithm of the density at each of `inputs`."""
        return -inputs - jnp.exp(-inputs)


def make_perturbed_fun(
    fun: Callable[[Any], PyTree],
    num_samples: int = 1000,
    sigma: RealScalarLike = 0.1,
    noise: Any = Gumbel(),  # noqa: B008, it is frozen
    use_baseline: bool = True,
) -> Callable[[Key, PyTree], PyTree]:
    r"""A smooth replacement for a function, such as a piecewise constant one.

    $$f_\sigma(x) = \mathbb{E}\, f(x + \sigma z) \approx \frac1m \sum_{k=1}^m f(y_k),
      \qquad y_k = x + \sigma z_k.$$

    The value is the mean over $m$ samples, and the derivative

    $$-\frac{1}{m \sigma} \sum_{k=1}^m \big(f(y_k) - f(x)\big)\,
      \nabla \log \mu(z_k)^\top$$

    with the density $\mu$ of the noise. Both are unbiased, and so are derivatives of
    any order and derivatives with respect to `sigma`. $f$ itself is not differentiated
    with respect to $x$. It is evaluated for all samples at once, which takes $m + 1$
    values and the memory for them.

    !!! example

        ```python
        one_hot = lambda x: jax.nn.one_hot(jnp.argmax(x), x.size)
        soft = eqopt.perturbations.make_perturbed_fun(one_hot, sigma=0.5)
        soft(jax.random.key(0), x)  # about jax.nn.softmax(x / 0.5)
        jax.jacobian(soft, argnums=1)(jax.random.key(0), x)
        ```

    **Arguments:**

    - `fun`: $f$, a function of one tree that returns a tree of real arrays. It must
        work under `jax.vmap`.
    - `num_samples`: $m \ge 1$, an integer. Defaults to 1000.
    - `sigma`: $\sigma > 0$, a number or a 0-d array. Defaults to 0.1.
    - `noise`: an object with the methods `sample(key, sample_shape, dtype)` and
        `log_prob(inputs)`, such as [`eqopt.perturbations.Gumbel`][], the default, or
        [`eqopt.perturbations.Normal`][].
    - `use_baseline`: whether to subtract $f(x)$ in the derivative. This reduces the
        variance, at the price of one more value. Where $f(x)$ is not finite, 0 is used
        instead. Defaults to `True`.

    **Returns:**

    A function of a key (or a seed) and of $x$, a whole model or any other tree. Its
    floating arrays are perturbed, in at least float32; all other leaves stay unchanged.
    Values have the same dtypes as the values of `fun`, or float32 for integers and
    bools.

    **Raises:**

    A `ValueError` if `num_samples` or `sigma` is out of its range, or if $x$ has no
    floating arrays.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{berthet2020learning,
            author = {Berthet, Quentin and Blondel, Mathieu and Teboul, Olivier and
                      Cuturi, Marco and Vert, Jean-Philippe and Bach, Francis},
            title = {Learning with Differentiable Perturbed Optimizers},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2020},
        }
        ```
    """
    check_integer("num_samples", num_samples, 1)
    check_interval("sigma", sigma, 0, includes_low=False, includes_high=False)

    @naming("eqopt.perturbations.make_perturbed_fun")
    def perturbed(key: Key, x: PyTree) -> PyTree:
        arrays = map_parameters(jnp.asarray, x)
        if not jtu.tree_leaves(arrays):
            raise InputError(
                f"the argument of the perturbed function is {briefly(x)}, without "
                "floating-point arrays. Convert it with `jnp.asarray(x, jnp.float32)`."
            )
        key = as_key(key)
        fixed = lax.stop_gradient(arrays)
        value = lambda shifted: _wide(fun(eqx.combine(shifted, x)))
        baseline = jtu.tree_map(_finite, value(fixed)) if use_baseline else None

        def sample(key: Any) -> PyTree:
            shifted, log_prob = _shifted(key, arrays, sigma, noise)
            narrow = jtu.tree_map(lambda y, p: y.astype(p.dtype), shifted, arrays)
            out, weight = value(narrow), _weight(log_prob)
            weighted = lambda y, w: y * w.astype(y.dtype)
            out_weighted = jtu.tree_map(lambda y: weighted(y, weight), out)
            if baseline is None:
                return out_weighted
            add = lambda y, b: y + weighted(b, 1 - weight)
            return jtu.tree_map(add, out_weighted, baseline)

        samples = jax.vmap(sample)(jr.split(key, num_samples))
        dtypes = jax.eval_shape(lambda: _dtypes(fun(eqx.combine(fixed, x))))
        mean = lambda y, like: jnp.mean(y, axis=0).astype(like.dtype)
        return jtu.tree_map(mean, samples, dtypes)

    return perturbed


@jax.custom_jvp
def _weight(log_prob: Float[Array, ""]) -> Float[Array, ""]:
    """1, with the derivatives of the ratio of two densities at the same sample."""
    return jnp.ones_like(log_prob)


@_weight.defjvp
def _weight_jvp(primals, tangents):
    # Expressed by itself, so that it has derivatives of every order.
    weight = _weight(*primals)
    return weight, weight * tangents[0]


def _shifted(key, arrays, sigma, noise):
    """A sample, which is constant, and the logarithm of its density, which is not."""

    def leaf(p, key):
        dtype = wide_dtype(p.dtype)
        x, scale = p.astype(dtype), jnp.asarray(sigma).astype(dtype)
        y = lax.stop_gradient(x + scale * noise.sample(key, p.shape, dtype))
        # The logarithm of `scale` matters for derivatives with respect to `sigma`.
        density = noise.log_prob((y - x) / scale) - jnp.log(scale)
        return y, jnp.sum(density)

    leaves, treedef = jtu.tree_flatten(arrays)
    keys = treedef.flatten_up_to(split_like(key, arrays))
    shifted, parts = zip(*map(leaf, leaves, keys), strict=True)
    dtype = common_dtype(*(part.dtype for part in parts))
    first, *rest = (part.astype(dtype) for part in parts)
    return treedef.unflatten(shifted), sum(rest, first)


def _finite(y):
    # Any constant is a valid baseline, but infinity would give NaN when multiplied by
    # zero.
    return jnp.where(jnp.isfinite(y), y, 0)


def _dtypes(out: PyTree) -> PyTree:
    is_float = lambda y: jnp.issubdtype(y.dtype, np.floating)
    narrow = lambda y: y if is_float(y) else y.astype(jnp.float32)
    return jtu.tree_map(lambda y: narrow(jnp.asarray(y)), out)


def _wide(out: PyTree) -> PyTree:
    return jtu.tree_map(lambda y: at_least_float32(jnp.asarray(y)), out)
