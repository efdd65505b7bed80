"""The diagonal of a symmetric matrix, estimated with random signs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Inexact

from .._trees.keys import split_like
from .._types import PyTree


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
