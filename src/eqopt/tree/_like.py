"""Trees with other numbers or dtypes: constants, random numbers, and casts."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Inexact, Shaped

from .._arguments.checks import check_interval
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.keys import as_key, split_like
from .._trees.leaves import is_leaf, is_parameter, listed, map_parameters, parameters
from .._trees.precision import compute_dtype
from .._trees.sharding import sharded_like
from .._trees.stored import is_stored
from .._types import Key, Params, PyTree, RealScalarLike, Scalar, Tree
from ..numerics._numerics import common_dtype, wide_dtype
from ._arithmetic import column_of, elementwise, loaded, number, own_dtype, replaced


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
    value = number("fill_value", fill_value, complex_too=True)
    filled = lambda x: full_like_leaf(x, value, _dtype_for(x, dtype))
    return map_parameters(filled, tree)


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


#
# Other dtypes, other values for some numbers, and additional leading axes
#


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
    column = column_of(treedef, "other_tree", other_tree, "tree", tree)

    def new(x: Any, y: Any) -> Any:
        are_arrays = is_parameter(x) and is_parameter(y)
        return _as(x, _dtype_for(x, own_dtype(y))) if are_arrays else x

    return treedef.unflatten(map(new, leaves, column))


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
        f"`tree` has arrays of several dtypes: {mixed}. Pass another "
        f"`mixed_dtype_handler` than {mixed_dtype_handler!r}, such as 'promote', or cast "
        "the arrays with `eqopt.tree.cast`."
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
        None if value is None else number(name, value)
        for name, value in (("min_value", min_value), ("max_value", max_value))
    )
    if low is not None and high is not None and not is_traced(low):
        check_interval("max_value", high, np.asarray(low).item())
    return elementwise(lambda x: _clipped(x, low, high), {"tree": tree})


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
    return elementwise(choose, trees, may_lack=False)


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


#
# Random trees, and random keys in trees
#


def split_key_like(rng_key: Key, target_tree: PyTree) -> PyTree:
    """A random key instead of every inexact array, and `None` for everything else.

    **Arguments:**

    - `rng_key`: a seed, a typed key of `jax.random.key`, or the bits of
        `jax.random.PRNGKey`.
    - `target_tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.

    **Returns:**

    A tree with the same structure. `jax.random.split` makes one key for each leaf in
    order, also for `None` and other leaves without a key. So the keys do not depend on
    shapes and dtypes. They are typed keys if `rng_key` is a typed key or a seed, and
    bits otherwise. Inside `jax.shard_map`, each shard of an array gets its own key, but
    not with `check_vma=False`.
    """
    return split_like(as_key(rng_key), target_tree)


def random_like(
    rng_key: Key,
    target_tree: PyTree,
    sampler: Callable[..., Any] = jr.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Random numbers instead of every inexact array, and `None` for everything else.

    !!! example

        ```python
        noise = eqopt.tree.random_like(key, model)
        signs = eqopt.tree.random_like(key, model, jax.random.rademacher)
        ```

    **Arguments:**

    - `rng_key`: a seed, a typed key of `jax.random.key`, or the bits of
        `jax.random.PRNGKey`. Each array gets its own key, from
        [`eqopt.tree.split_key_like`][].
    - `target_tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `sampler`: a function of a key, a shape and a dtype. Defaults to
        `jax.random.normal`.
    - `dtype`: the dtype of the numbers. Defaults to the dtype of each array. For a
        complex array, a floating dtype means the complex dtype with the same precision.

    **Returns:**

    A tree with the same structure, sharded like `target_tree`. The numbers for an array
    do not depend on the shapes of other arrays.
    """
    keys = split_like(as_key(rng_key), target_tree)
    leaves, treedef = jtu.tree_flatten(target_tree, is_leaf=is_leaf)

    def sampled(x: Any, key: Any) -> Any:
        if not is_parameter(x):
            return None
        sample = sampler(key, x.shape, _dtype_for(x, dtype))
        return _sharded_like(loaded(x), sample)

    return treedef.unflatten(map(sampled, leaves, treedef.flatten_up_to(keys)))


def _sharded_like(x: Any, sample: Any) -> Any:
    if not isinstance(x, jax.Array) or (is_traced(sample) and not is_traced(x)):
        return sample  # `x` is on no device, or on the devices of another program
    return sharded_like(x, sample)


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """`input_tree` with the bits of its typed random keys instead of the keys.

    Typed keys cannot be compared as numbers, and `eqx.tree_serialise_leaves` cannot
    save them. Arrays of bits have neither restriction.

    **Arguments:**

    - `input_tree`: any pytree.

    **Returns:**

    `input_tree` with `jax.random.key_data(x)`, a uint32 array, instead of each array
    `x` of typed keys, which `jax.random.key` returns. Everything else stays unchanged,
    including integer arrays.
    """
    return jtu.tree_map(lambda x: jr.key_data(x) if is_typed_key(x) else x, input_tree)


def is_typed_key(x: Any) -> bool:
    """Whether a leaf is an array of the keys that `jax.random.key` returns."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def scalar(value: Any, params: Params) -> Scalar:
    """A number for the state in a new buffer, in the precision of the equations."""
    dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
    return jnp.array(value, dtype)
