"""Products with the Hessian, and the diagonals of the Hessian and of the Fisher."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.checks import check_integer, check_needs
from .._errors import InputError
from .._trees.keys import as_key, split_like
from .._trees.leaves import disagreement, map_parameters, parameters
from .._types import Key, Params, PyTree, StaticInteger, Updates
from ..microbatching import AccumulationType, micro_vmap
from ..numerics._numerics import abs_sq, at_least_float32, wide_dtype


def hvp(loss: Callable[..., Any], v: PyTree, params: Params, *args: Any) -> Updates:
    r"""Computes the product $H v$ of a loss's Hessian and a vector.

    $$H v = \frac{d}{dt}\, \nabla L(p + t v)\,\Big|_{t = 0}.$$

    It is exact, and takes about as much time as two additional gradients and as much
    memory as one. $H$ is never formed.

    !!! example

        ```python
        # The curvature in the direction of the gradient.
        grads = eqx.filter_grad(loss_fn)(model, batch)
        product = eqopt.second_order.hvp(loss_fn, grads, model, batch)
        ```

    **Arguments:**

    - `loss`: $L$, a function of `params` and `args` that returns a real number.
    - `v`: a tree with an array for each parameter, such as a gradient or another model,
        cast to the dtypes of the parameters. Other leaves are ignored.
    - `params`: $p$, a whole model or any other tree. Its inexact arrays are the
        parameters; all other leaves stay unchanged.
    - `args`: the other arguments of `loss`, such as a batch.

    **Returns:**

    A tree like the gradient: arrays with shapes and dtypes of the parameters, and
    `None` for all other leaves. For complex parameters, it is the derivative of
    `jax.grad(loss)`.

    **Raises:**

    A `ValueError` if `v` does not fit `params`, or if `loss` does not return a real
    number.

    ??? cite "Reference"

        ```bibtex
        @article{pearlmutter1994fast,
            author = {Pearlmutter, Barak A.},
            title = {Fast Exact Multiplication by the {H}essian},
            journal = {Neural Computation},
            volume = {6},
            number = {1},
            pages = {147--160},
            year = {1994},
        }
        ```
    """
    arrays = map_parameters(jnp.asarray, params)
    slope = jax.grad(loss_of_arrays("loss", loss, params, args))
    return jax.jvp(slope, (arrays,), (_like(v, arrays),))[1]


def _like(v: PyTree, arrays: PyTree) -> PyTree:
    """`v` with the structure and dtypes of `arrays`."""
    v = parameters(v)
    shapes = lambda tree: [(p, np.shape(x)) for p, x in jtu.tree_leaves_with_path(tree)]
    if shapes(v) != shapes(arrays):
        raise InputError(
            f"{disagreement('v', v, 'params', arrays)} It must be like the gradient: "
            "`jax.flatten_util.ravel_pytree(params)[1]` makes one of a vector."
        )
    leaves, treedef = jtu.tree_flatten(arrays)
    pairs = zip(jtu.tree_leaves(v), leaves, strict=True)
    return treedef.unflatten(x.astype(p.dtype) for x, p in pairs)


def loss_of_arrays(
    name: str, loss: Callable[..., Any], params: Params, args: tuple
) -> Callable[[PyTree], Any]:
    """`loss` at `args`, with the given arrays instead of the arrays in `params`.

    Its errors call it `name`.
    """

    def value(arrays: PyTree) -> Any:
        out = loss(eqx.combine(arrays, params), *args)
        is_number = eqx.is_array_like(out) and np.shape(out) == ()
        if not (is_number and jnp.issubdtype(jnp.result_type(out), np.floating)):
            found = eqx.tree_pformat(out)
            expected = f"`{name}` must return a real floating-point number"
            fix = "Return only the loss, the mean over a batch."
            raise InputError(f"{expected}, but returned {found}. {fix}")
        return out

    return value


def hutchinson(key: Any, product: Callable[[PyTree], PyTree], arrays: PyTree) -> PyTree:
    r"""Computes $r \odot H r$ for random signs $r$: on average, the diagonal of $H$.

    **Arguments:**

    - `key`: a key for the signs.
    - `product`: $r \mapsto H r$, a function of trees like `arrays`.
    - `arrays`: inexact arrays; only their shapes and dtypes are used.
    """
    signs = jax.tree.map(random_signs, split_like(key, arrays), arrays)
    # Without a conjugate: the conjugate of the gradient is already in the product.
    return jax.tree.map(lambda r, h: (r * h).real, signs, product(signs))


def random_signs(key: Any, p: Any) -> Inexact[Array, "..."]:
    """Random signs instead of `p`, or numbers of modulus 1 if it is complex."""
    real = jnp.finfo(p.dtype).dtype
    if not jnp.iscomplexobj(p):
        return jr.rademacher(key, p.shape, real)
    x, y = jr.rademacher(key, (2, *p.shape), real) * jnp.sqrt(jnp.asarray(0.5, real))
    return lax.complex(x, y)


def hessian_diag(
    loss: Callable[..., Any],
    params: Params,
    *args: Any,
    num_samples: int | None = None,
    key: Key | None = None,
    batch_size: int = 32,
) -> Updates:
    r"""Computes the diagonal of a loss's Hessian $H$, or estimates it.

    - *Exact*, by default: $e_i^\top H e_i$ for each of the $n$ parameters. It takes
        about as much time as $2 n$ gradients, so it grows as $n^2$, and as much memory
        as `batch_size` gradients. Each array of parameters is processed separately, and
        takes as long to compile as a gradient. Use it for small models and for tests.
    - *Hutchinson's estimate*, with `num_samples=m`: the mean of $m$ samples
        $r \odot H r$ with random signs $r_i = \pm 1$. It takes about as much time as
        $2 m$ gradients, and as much memory as a few gradients. It is unbiased; entry
        $i$ has variance $\frac1m \sum_{j \ne i} H_{ij}^2$, so it is exact if $H$ is
        diagonal.

    Use both under `eqx.filter_jit`.

    !!! example

        ```python
        exact = eqopt.second_order.hessian_diag(loss_fn, model, batch)
        estimate = eqopt.second_order.hessian_diag(
            loss_fn, model, batch, num_samples=10, key=jax.random.key(0)
        )
        ```

    Inside an optimizer, use [`eqopt.HutchinsonDiagHessian`][] for the estimate.

    **Arguments:**

    - `loss`: a function of `params` and `args` that returns a real number.
    - `params`: a whole model or any other tree. Its inexact arrays are the parameters;
        all other leaves stay unchanged.
    - `args`: the other arguments of `loss`, such as a batch.
    - `num_samples`: $m \ge 1$, for Hutchinson's estimate, or `None` for the exact
        diagonal. Defaults to `None`.
    - `key`: a seed or a key for the signs. It is required for the estimate.
    - `batch_size`: the number of entries of the exact diagonal to compute at a time, at
        least 1. Defaults to 32.

    **Returns:**

    A tree like the gradient: arrays with shapes and dtypes of the parameters, and `None`
    for all other leaves. Samples are summed in at least float32. For a complex parameter
    $x + iy$ it is the mean of the entries for $x$ and for $y$, as a complex number.

    **Raises:**

    A `ValueError` if `num_samples` or `batch_size` is not a positive integer, if one of
    `num_samples` and `key` is given without the other, or if `loss` does not return a
    real number.

    ??? cite "Reference"

        ```bibtex
        @article{bekas2007estimator,
            author = {Bekas, Costas and Kokiopoulou, Effrosyni and Saad, Yousef},
            title = {An Estimator for the Diagonal of a Matrix},
            journal = {Applied Numerical Mathematics},
            volume = {57},
            year = {2007},
        }
        ```
    """
    arrays = map_parameters(jnp.asarray, params)
    value = loss_of_arrays("loss", loss, params, args)
    check_integer("batch_size", batch_size, 1)
    if (num_samples is None) != (key is None):
        problem = f"`num_samples` is {num_samples}, and `key` is {key}."
        fix = "Pass both for the estimate, or neither for the exact diagonal."
        raise InputError(f"{problem} {fix}")
    if num_samples is None or key is None:
        return _exact(value, arrays, batch_size)
    check_integer("num_samples", num_samples, 1)
    return _estimate(value, arrays, jr.split(as_key(key), num_samples))


def _exact(value: Callable[[PyTree], Any], arrays: PyTree, batch_size: int) -> PyTree:
    leaves, treedef = jtu.tree_flatten(arrays)

    def of_leaf(i: int) -> Inexact[Array, "..."]:
        def value_of_leaf(leaf: Inexact[Array, "..."]) -> Any:
            return value(treedef.unflatten([*leaves[:i], leaf, *leaves[i + 1 :]]))

        return _exact_leaf(value_of_leaf, leaves[i], batch_size)

    return treedef.unflatten([of_leaf(i) for i in range(len(leaves))])


def _exact_leaf(value, leaf, batch_size) -> Inexact[Array, "*leaf"]:
    if leaf.size == 0:
        return leaf
    _, product = jax.linearize(jax.grad(value), leaf)
    units = (1, 1j) if jnp.iscomplexobj(leaf) else (1,)

    def entry(i: Any) -> Any:
        parts = []
        for unit in units:
            e = jnp.zeros(leaf.size, leaf.dtype).at[i].set(unit)
            parts.append((product(e.reshape(leaf.shape)).ravel()[i] * unit).real)
        return sum(parts[1:], parts[0]) / len(parts)

    entries = lax.map(entry, jnp.arange(leaf.size), batch_size=batch_size)
    return entries.astype(leaf.dtype).reshape(leaf.shape)


def _estimate(value: Callable[[PyTree], Any], arrays: PyTree, keys: Any) -> PyTree:
    _, product = jax.linearize(jax.grad(value), arrays)

    def add(total: PyTree, key: Any) -> tuple[PyTree, None]:
        sample = hutchinson(key, product, arrays)
        return jtu.tree_map(lambda t, x: t + x.astype(t.dtype), total, sample), None

    dtype = lambda p: wide_dtype(jnp.finfo(p.dtype).dtype)
    zeros = jtu.tree_map(lambda p: jnp.zeros(p.shape, dtype(p)), arrays)
    total, _ = lax.scan(add, zeros, keys)
    return jtu.tree_map(lambda t, p: (t / len(keys)).astype(p.dtype), total, arrays)


def fisher_diag(
    negative_log_likelihood: Callable[..., Any],
    params: Params,
    *args: Any,
    per_example: bool = False,
    microbatch_size: StaticInteger | None = None,
) -> Updates:
    r"""Computes the diagonal of the observed, or empirical, Fisher information.

    With $\ell(p, x) = -\log \Pr(x \mid p)$ it is

    $$F = \nabla \ell(p, x)^2 \qquad\text{or}\qquad
      F = \frac1B \sum_{b=1}^B \nabla \ell(p, x_b)^2,$$

    by default the first, with `per_example=True` the second. The first is correct for
    one observation $x$. If $\ell$ is the mean over a batch, the first is the square of
    a mean, which vanishes at the minimum; the second is the mean of the squares.

    The first costs one gradient. The second takes the time of one gradient of the
    batch, and the memory for the gradients of `microbatch_size` examples.

    !!! example

        ```python
        fisher = eqopt.second_order.fisher_diag(
            nll_of_one_example, model, x, y, per_example=True, microbatch_size=16
        )
        ```

    **Arguments:**

    - `negative_log_likelihood`: $\ell$, a function of `params` and `args` that returns
        a real number. With `per_example`, it is a function of one example of `args`.
    - `params`: $p$, a whole model or any other tree. Its inexact arrays are the
        parameters; all other leaves stay unchanged.
    - `args`: the observation $x$, or a batch in which every array has the examples
        along its first axis.
    - `per_example`: whether to take the mean over the examples. Defaults to `False`.
    - `microbatch_size`: the number of examples to process at a time, at least 1, for
        `per_example`. Defaults to `None`, which means all of them.

    **Returns:**

    A tree like the gradient: arrays with shapes and dtypes of the parameters, and `None`
    for all other leaves. Squares and means are computed in at least float32. For a
    complex parameter $x + iy$ it is the mean of the entries for $x$ and for $y$, as a
    complex number.

    **Raises:**

    A `ValueError` if there is no batch for `per_example`, or if its arrays have
    different sizes; if `microbatch_size` is not positive, larger than the batch, or
    given without `per_example`; or if `negative_log_likelihood` does not return a real
    number.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kunstner2019limitations,
            author = {Kunstner, Frederik and Balles, Lukas and Hennig, Philipp},
            title = {Limitations of the Empirical {F}isher Approximation for Natural
                     Gradient Descent},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """
    arrays = map_parameters(jnp.asarray, params)

    def squares(*example: Any) -> PyTree:
        name = "negative_log_likelihood"
        value = loss_of_arrays(name, negative_log_likelihood, params, example)
        return jtu.tree_map(_square, jax.grad(value)(arrays))

    is_met = per_example or microbatch_size is None
    fix = "Without it, there is no batch to divide."
    check_needs("microbatch_size", "per_example=True", is_met, fix)
    if not per_example:
        return _narrow(squares(*args), arrays)
    is_numpy = lambda x: isinstance(x, np.ndarray | np.generic)
    batch = jtu.tree_map(lambda x: jnp.asarray(x) if is_numpy(x) else x, args)
    mean = micro_vmap(
        squares, microbatch_size=microbatch_size, accumulator=AccumulationType.MEAN
    )
    return _narrow(mean(*batch), arrays)


def _square(g: Any) -> Any:
    # For a complex parameter, this is the mean for the real and imaginary parts.
    wide = abs_sq(at_least_float32(g))
    return wide / 2 if jnp.iscomplexobj(g) else wide


def _narrow(tree: PyTree, arrays: PyTree) -> PyTree:
    return jtu.tree_map(lambda x, p: x.astype(p.dtype), tree, arrays)
