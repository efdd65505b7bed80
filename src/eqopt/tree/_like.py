from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Inexact, Shaped

from .._jax_internals import is_traced
from .._trees.leaves import map_parameters
from .._trees.sharding import sharded_like
from .._types import PyTree, RealScalarLike
from ..numerics._numerics import common_dtype, wide_dtype
from ._together import loaded, number, own_dtype


_Leaf: TypeAlias = (
    Inexact[Array | np.ndarray, "*leaf"] | np.generic | jax.ShapeDtypeStruct
)


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros instead of every inexact array, and `None` for everything else.

    **Arguments:**

    - `tree`: any pytree, such as a whole Equinox model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `dtype`: the dtype of the zeros, of any kind. Defaults to the dtype of each array.
        For a complex array, a floating dtype means the complex dtype with the same
        precision.

    **Returns:**

    A tree with the same structure, sharded like `tree`.
    """
    return full_like(tree, 0, dtype)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Ones instead of every inexact array, and `None` for everything else.

    **Arguments:**

    - `tree`: any pytree, such as a whole Equinox model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `dtype`: the dtype of the ones, of any kind. Defaults to the dtype of each array.
        For a complex array, a floating dtype means the complex dtype with the same
        precision.

    **Returns:**

    A tree with the same structure, sharded like `tree`.
    """
    return full_like(tree, 1, dtype)


def full_like(
    tree: PyTree, fill_value: RealScalarLike | complex, dtype: DTypeLike | None = None
) -> PyTree:
    """One number instead of every inexact array, and `None` for everything else.

    **Arguments:**

    - `tree`: any pytree, such as a whole Equinox model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `fill_value`: a number or a 0-d array.
    - `dtype`: the dtype of the result, of any kind. Defaults to the dtype of each array.
        For a complex array, a floating dtype means the complex dtype with the same
        precision.

    **Returns:**

    A tree with the same structure, sharded like `tree`.

    **Raises:**

    A `ValueError` if `fill_value` has axes.
    """
    value = number("full_like", "fill_value", fill_value, complex_too=True)
    return map_parameters(
        lambda x: full_like_leaf(x, value, _dtype_for(x, dtype)), tree
    )


def _dtype_for(x: Any, dtype: Any) -> Any:
    if dtype is None:
        # With its dtype, a slot is not weakly typed, as after the first step.
        return own_dtype(x)
    is_floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    if not (is_floating and jnp.issubdtype(x.dtype, jnp.complexfloating)):
        return dtype
    return common_dtype(dtype, jnp.complex64)


def slot_dtype(x: _Leaf, dtype: DTypeLike | None = None) -> DTypeLike:
    """The dtype in which a slot with values like `x` is stored, by default or as given.

    This is the one rule for the whole library. The default is the dtype of `x`, but at
    least float32, because slots average or sum up over steps: in bfloat16, an average
    with a decay of 0.999 stands still. The exceptions are copies of a parameter or a
    gradient. They are exact in its dtype, and start from `zeros_like` or `copy` instead.
    """
    return wide_dtype(own_dtype(x)) if dtype is None else _dtype_for(x, dtype)


def wide_zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros like the inexact arrays, in `dtype`, by default in at least float32.

    For first moments, momentum and sums.
    """
    return map_parameters(lambda x: full_like_leaf(x, 0, slot_dtype(x, dtype)), tree)


def wide_copy(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """The inexact arrays in new buffers, in `dtype`, by default in at least float32.

    For averages of the parameters, and for parameters that the state moves.
    """
    return map_parameters(lambda x: jnp.array(x, slot_dtype(x, dtype), copy=True), tree)


def zero_updates(tree: PyTree) -> PyTree:
    """`zeros_like`, as constants that XLA knows. They may be sharded in another way."""
    return map_parameters(jnp.zeros_like, tree)


def full_like_leaf(
    x: _Leaf, value: Any, dtype: DTypeLike | None = None
) -> Shaped[Array, "*leaf"]:
    x = jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else loaded(x)
    filled = jnp.full_like(x, value, dtype=dtype)
    # Under `jit` on an automatic mesh, `full_like` is not sharded like `x`.
    return sharded_like(x, filled) if is_traced(x) else filled


def real_full_like(tree: PyTree, value: Any, dtype: DTypeLike | None = None) -> PyTree:
    """`value` instead of every inexact array, real also for complex ones.

    For second moments, in `dtype`, by default in at least float32.
    """
    return map_parameters(lambda x: real_full_like_leaf(x, value, dtype), tree)


def real_full_like_leaf(
    x: _Leaf, value: Any, dtype: DTypeLike | None = None
) -> Shaped[Array, "*leaf"]:
    real = jnp.finfo(slot_dtype(x)).dtype if dtype is None else dtype
    return full_like_leaf(x, value, real)


def copy(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """The inexact arrays of `tree` in new buffers, which a state can keep.

    `dtype` as in `zeros_like`.
    """
    return map_parameters(lambda x: jnp.array(x, _dtype_for(x, dtype), copy=True), tree)
