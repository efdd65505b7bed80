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
    zeros = jnp.zeros_like(x, dtype=dtype)
    # Under `jit` on an automatic mesh nothing else ties the zeros to the shards of `x`.
    return shard_alike(x, zeros)[1] if isinstance(x, Tracer) else zeros
