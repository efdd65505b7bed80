"""The diagonal of the Hessian: entry by entry, or estimated."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.checks import check_integer
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import map_parameters
from .._types import Key, Params, PyTree, Updates
from ..numerics._numerics import wide_dtype
from ._hutchinson import hutchinson
from ._loss import loss_of_arrays


def hessian_diag(
    loss: Callable[..., Any],
    params: Params,
    *args: Any,
    num_samples: int | None = None,
    key: Key | None = None,
    batch_size: int = 32,
) -> Updates:
    r"""The diagonal of a loss's Hessian $H$, exact or estimated.

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
    value = loss_of_arrays("hessian_diag", "loss", loss, params, args)
    check_integer("hessian_diag", "batch_size", batch_size, 1)
    if (num_samples is None) != (key is None):
        raise InputError(
            "hessian_diag",
            f"`num_samples` is {num_samples}, and `key` is {key}. Pass both for the "
            "estimate, or neither for the exact diagonal.",
        )
    if num_samples is None or key is None:
        return _exact(value, arrays, batch_size)
    check_integer("hessian_diag", "num_samples", num_samples, 1)
    return _estimate(value, arrays, jr.split(as_key(key), num_samples))


def _exact(value: Callable[[PyTree], Any], arrays: PyTree, batch_size: int) -> PyTree:
    leaves, treedef = jtu.tree_flatten(arrays)

    def of_leaf(i: int) -> Inexact[Array, "..."]:
        def value_of_leaf(leaf: Inexact[Array, "..."]) -> Any:
            return value(treedef.unflatten([*leaves[:i], leaf, *leaves[i + 1 :]]))

        return _exact_leaf(value_of_leaf, leaves[i], batch_size)

    return treedef.unflatten([of_leaf(i) for i in range(len(leaves))])


def _exact_leaf(
    value: Callable[..., Any], leaf: Inexact[Array, "*leaf"], batch_size: int
) -> Inexact[Array, "*leaf"]:
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
