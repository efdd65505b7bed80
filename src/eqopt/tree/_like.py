from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.experimental.shard_alike import shard_alike
from jaxtyping import Array, DTypeLike, Inexact, PyTree

from .._leaves import map_parameters
from ..numerics import common_dtype


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros in the place of every inexact array, `None` in the place of all else.

    **Arguments:**

    - `tree`: any pytree, such as a whole Equinox model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `dtype`: the dtype of the zeros. Defaults to that of each array. In the place of a
        complex array, a real dtype stands for the complex one of its precision.

    **Returns:**

    A tree of the same structure, sharded like `tree`.
    """
    return map_parameters(lambda x: zeros_like_leaf(x, _dtype_for(x, dtype)), tree)


def _dtype_for(x, dtype):
    if dtype is None or not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return dtype
    return common_dtype(dtype, jnp.complex64)


def zeros_like_leaf(
    x: Inexact[Array, "*leaf"] | jax.ShapeDtypeStruct, dtype: DTypeLike | None = None
) -> Inexact[Array, "*leaf"]:
    return full_like_leaf(x, 0, dtype)


def full_like_leaf(
    x: Inexact[Array, "*leaf"] | jax.ShapeDtypeStruct,
    value: Any,
    dtype: DTypeLike | None = None,
) -> Inexact[Array, "*leaf"]:
    filled = jnp.full_like(x, value, dtype=dtype)
    # Under `jit` on an automatic mesh nothing else ties them to the shards of `x`.
    return shard_alike(x, filled)[1] if isinstance(x, Tracer) else filled


def real_full_like(tree: PyTree, value: Any, dtype: DTypeLike | None = None) -> PyTree:
    """`value` in the place of every inexact array, real also for complex ones.

    For second moments. `dtype` defaults to the real dtype of each array's precision.
    """
    real = lambda x: jnp.finfo(x.dtype).dtype if dtype is None else dtype
    return map_parameters(lambda x: full_like_leaf(x, value, real(x)), tree)


def copy(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """The inexact arrays of `tree` in buffers of their own, for a state to keep.

    `dtype` as in `zeros_like`.
    """
    return map_parameters(lambda x: jnp.array(x, _dtype_for(x, dtype), copy=True), tree)
