"""The precision in which a leaf is computed: at least float32."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ..numerics._numerics import common_dtype
from .stored import is_stored


def compute_dtype(*leaves: Any) -> Any:
    """The real dtype to compute in: float64 if any leaf has it, otherwise float32."""
    dtypes = {jnp.dtype(jnp.float32)}
    for x in leaves:
        is_plain = isinstance(x, jax.Array)
        found = [x] if is_plain else jax.tree.leaves(x, is_leaf=is_stored)
        dtypes.update([y.dtype for y in found if jnp.issubdtype(y.dtype, jnp.inexact)])
    return jnp.finfo(common_dtype(*dtypes) if len(dtypes) > 1 else jnp.float32).dtype


def widen(tree: Any, real: Any) -> Any:
    """The leaves of `tree`, loaded, in the precision of `real`; complex ones stay so."""
    if isinstance(tree, jax.Array) and tree.dtype == real:
        return tree
    return jax.tree.map(functools.partial(_widen, real), tree, is_leaf=is_stored)


def _widen(real: Any, x: Any) -> Any:
    if is_stored(x):
        x = x.load()
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    dtype = common_dtype(real, jnp.complex64) if jnp.iscomplexobj(x) else real
    # Without `jit`, for debugging, NumPy arrays are passed unchanged.
    return jnp.asarray(x).astype(dtype)
