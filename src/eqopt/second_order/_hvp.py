"""Products with the Hessian, which is never formed."""

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

from .._errors import InputError
from .._trees.keys import split_like
from .._trees.leaves import disagreement, map_parameters, parameters
from .._types import Params, PyTree, Updates


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
    slope = jax.grad(loss_of_arrays("hvp", "loss", loss, params, args))
    return jax.jvp(slope, (arrays,), (_like(v, arrays),))[1]


def _like(v: PyTree, arrays: PyTree) -> PyTree:
    """`v` with the structure and dtypes of `arrays`."""
    v = parameters(v)
    here, there = (
        [(path, np.shape(x)) for path, x in jtu.tree_leaves_with_path(tree)]
        for tree in (v, arrays)
    )
    if here != there:
        raise InputError(
            "hvp",
            f"{disagreement('v', v, 'params', arrays)} It must be a tree like the "
            "gradient: `jax.flatten_util.ravel_pytree(params)[1]` makes one of a vector.",
        )
    leaves, treedef = jtu.tree_flatten(arrays)
    pairs = zip(jtu.tree_leaves(v), leaves, strict=True)
    return treedef.unflatten(x.astype(p.dtype) for x, p in pairs)


def loss_of_arrays(
    owner: str, name: str, loss: Callable[..., Any], params: Params, args: tuple
) -> Callable[[PyTree], Any]:
    """`loss` at `args`, with the given arrays instead of the arrays in `params`.

    **Arguments:**

    - `owner`, `name`: the called function, and the name of `loss` among its arguments.
    """

    def value(arrays: PyTree) -> Any:
        out = loss(eqx.combine(arrays, params), *args)
        is_number = eqx.is_array_like(out) and np.shape(out) == ()
        if not (is_number and jnp.issubdtype(jnp.result_type(out), np.floating)):
            raise InputError(
                owner,
                f"`{name}` must return a real floating-point number, but returned "
                f"{eqx.tree_pformat(out)}. Return only the loss, the mean over a batch.",
            )
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
