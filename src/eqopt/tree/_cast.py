"""Other dtypes, other values for some numbers, and additional leading axes."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, DTypeLike

from .._arguments.checks import check_interval
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import is_leaf, is_parameter, listed, parameters
from .._trees.stored import is_stored
from .._types import PyTree, RealScalarLike, Tree
from ..numerics._numerics import common_dtype
from ._like import _dtype_for
from ._together import column_of, elementwise, number, own_dtype, replaced


def cast(tree: Tree, dtype: DTypeLike | None) -> Tree:
    """`tree` with its arrays in another dtype.

    !!! example

        ```python
        half = eqopt.tree.cast(model, jnp.bfloat16)
        ```

    **Arguments:**

    - `tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `dtype`: the new dtype, or `None` to keep all dtypes. For a complex array, a real
        dtype means the complex dtype with the same precision. For the real parts, use
        [`eqopt.tree.real`][].

    **Returns:**

    `tree` with the arrays cast. Integer arrays are not parameters and stay unchanged,
    like everything else. So do arrays that a wrapper such as [`eqopt.StoreState`][] has
    stored in another form.
    """
    new = lambda x: _as(x, _dtype_for(x, dtype)) if is_parameter(x) else x
    return jtu.tree_map(new, tree, is_leaf=is_stored)


def cast_like(tree: Tree, other_tree: PyTree) -> Tree:
    """`tree` with each array in the dtype of the corresponding array of another tree.

    **Arguments:**

    - `tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `other_tree`: a tree with the same structure. Its arrays may have other shapes,
        and may be `jax.ShapeDtypeStruct`s. Where it has no array, `tree` keeps its
        dtype.

    **Returns:**

    `tree` with the arrays cast. A complex array stays complex: a real dtype means the
    complex dtype with the same precision.

    **Raises:**

    A `ValueError` that names the key path if structures differ.
    """
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    column = column_of("cast_like", treedef, "other_tree", other_tree, "tree", tree)
    return treedef.unflatten(
        _as(x, _dtype_for(x, own_dtype(y)))
        if is_parameter(x) and is_parameter(y)
        else x
        for x, y in zip(leaves, column, strict=True)
    )


def _as(x: Any, dtype: Any) -> Any:
    if is_stored(x):
        return x
    if isinstance(x, jax.ShapeDtypeStruct):
        return x.update(dtype=jnp.dtype(dtype))
    return jnp.asarray(x).astype(dtype)


def dtype(
    tree: PyTree,
    mixed_dtype_handler: Literal["promote", "highest", "lowest"] | None = None,
) -> np.dtype:
    """The dtype of the arrays in `tree`.

    **Arguments:**

    - `tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s. Integer arrays do not count.
    - `mixed_dtype_handler`: what to return if there are several dtypes. `"promote"`:
        the dtype to which all of them promote. `"highest"`: the one among them to which
        all others promote. `"lowest"`: the one among them that promotes to all others.
        `None`, the default: raise an error.

    **Returns:**

    A dtype; the default floating-point dtype if there are no arrays.

    **Raises:**

    A `ValueError` that lists the dtypes if `mixed_dtype_handler` does not allow them,
    for example `"highest"` for float16 and bfloat16.
    """
    places = {}
    for path, x in jtu.tree_leaves_with_path(parameters(tree), is_leaf=is_stored):
        places.setdefault(own_dtype(x), jtu.keystr(path) or "(the root)")
    found = list(places) or [jnp.zeros(0).dtype]
    promoted = common_dtype(*found)
    if mixed_dtype_handler == "promote" or len(found) == 1:
        return promoted
    if mixed_dtype_handler == "highest" and promoted in found:
        return promoted
    if mixed_dtype_handler == "lowest":
        for dtype in found:
            if all(common_dtype(dtype, other) == other for other in found):
                return dtype
    mixed = listed([f"{dtype} (as at `{path}`)" for dtype, path in places.items()], "")
    raise InputError(
        "dtype",
        f"`tree` has arrays of several dtypes: {mixed}. Pass another "
        f"`mixed_dtype_handler` than {mixed_dtype_handler!r}, such as 'promote', or cast "
        "the arrays with `eqopt.tree.cast`.",
    )


def real(tree: PyTree) -> PyTree:
    """`tree` with the real parts of its complex arrays, as real arrays.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole model.

    **Returns:**

    `tree` with real arrays instead of its complex ones. Everything else stays unchanged.
    """
    return replaced(lambda x: x.real, tree)


def conj(tree: PyTree) -> PyTree:
    """`tree` with the complex conjugates of its complex arrays.

    **Arguments:**

    - `tree`: any pytree. The gradient that JAX gives for a real function of complex
        parameters is the conjugate of the direction of steepest ascent.

    **Returns:**

    `tree` with its complex arrays conjugated. Everything else stays unchanged.
    """
    return replaced(lambda x: x.conj() if jnp.iscomplexobj(x) else x, tree)


def clip(
    tree: PyTree,
    min_value: RealScalarLike | None = None,
    max_value: RealScalarLike | None = None,
) -> PyTree:
    r"""`tree` with all numbers in $[\text{min}, \text{max}]$.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole model. The real and the imaginary
        parts of complex arrays are clipped separately, as in [`eqopt.Clip`][].
    - `min_value`, `max_value`: numbers or 0-d arrays. `None`, the default, means no
        bound.

    **Returns:**

    `tree` with its arrays clipped, in their own dtypes. NaN and everything else stay
    unchanged.

    **Raises:**

    A `ValueError` if a bound has axes, or if `min_value` is larger than `max_value`.
    Traced values are not checked.
    """
    low, high = (
        None if value is None else number("clip", name, value)
        for name, value in (("min_value", min_value), ("max_value", max_value))
    )
    if low is not None and high is not None and not is_traced(low):
        check_interval("clip", "max_value", high, np.asarray(low).item())
    return elementwise("clip", lambda x: _clipped(x, low, high), {"tree": tree})


def _clipped(x: Any, low: Any, high: Any) -> Any:
    if jnp.iscomplexobj(x):
        return jax.lax.complex(_clipped(x.real, low, high), _clipped(x.imag, low, high))
    bounds = (None if y is None else jnp.asarray(y, x.dtype) for y in (low, high))
    return jnp.clip(x, *bounds)


def where(
    condition: bool | np.bool_ | Bool[Array, ""], tree_x: PyTree, tree_y: PyTree
) -> PyTree:
    """The arrays of one of two trees.

    Both trees are computed before one is chosen. To skip work, use `jax.lax.cond`.

    **Arguments:**

    - `condition`: a bool or a 0-d array of bools. For a condition per leaf or per
        element, use `jax.tree.map` with `jnp.where`.
    - `tree_x`, `tree_y`: trees with the same structure and arrays of the same shapes.

    **Returns:**

    `tree_x` if `condition` is true. Otherwise `tree_x` with the values of the arrays of
    `tree_y`, in the dtypes of `tree_x`.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, or if only one
    tree has an array, and a `TypeError` if a complex array would become real.
    """
    choose = lambda x, y: jnp.where(condition, x, y)
    trees = {"tree_x": tree_x, "tree_y": tree_y}
    return elementwise("where", choose, trees, may_lack=False)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """`tree` with each array repeated along new leading axes.

    !!! example

        ```python
        models = eqopt.tree.batch_shape(model, (8,))
        axis = lambda x: 0 if eqx.is_inexact_array(x) else None
        outputs = eqx.filter_vmap(lambda m: m(x), in_axes=(axis,))(models)
        ```

    **Arguments:**

    - `tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `shape`: the sizes of the new axes.

    **Returns:**

    `tree` with arrays of shape `(*shape, *x.shape)`. Integer arrays are not parameters
    and stay unchanged, like everything else.
    """
    return replaced(lambda x: _batched(x, shape), tree)


def _batched(x: Any, shape: Any) -> Any:
    full = (*shape, *x.shape)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(full, x.dtype)
    return jnp.broadcast_to(x, full)
