"""Several trees and numbers, leaf by leaf: shared by all arithmetic."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._trees.leaves import disagreement, is_leaf, is_parameter, keystr, parameters
from .._trees.precision import compute_dtype, widen
from .._trees.stored import is_stored, load
from .._types import PyTree
from ..numerics._numerics import common_dtype, wide_dtype


class Rows(NamedTuple):
    """Aligned trees.

    **Attributes:**

    - `leaves`: the leaves of the first tree, `None` included.
    - `rows`: for each leaf that is an array, the list of the arrays of the other trees
        at the same position, with `None` for a tree without one; for other leaves,
        `None`.
    - `treedef`: the structure of the first tree.
    """

    leaves: list
    rows: list
    treedef: Any


def together(owner: str, trees: Mapping[str, PyTree], *, may_lack: bool) -> Rows:
    """Aligns `trees`, whose names are the argument names of `owner`.

    `may_lack`: whether the other trees may have `None` where the first has an array.

    **Raises:**

    A `ValueError` that names the key path if structures, shapes or positions of arrays
    differ.
    """
    (name, tree), *others = trees.items()
    check_numbers(owner, name, tree)
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    columns = [column_of(owner, treedef, other, x, name, tree) for other, x in others]
    leaves, *columns = ([*map(loaded, column)] for column in (leaves, *columns))
    rows: list = [None] * len(leaves)
    for i, (x, *ys) in enumerate(zip(leaves, *columns, strict=True)):
        for (other, _), y in zip(others, ys, strict=True):
            problem = _problem(name, x, other, y, may_lack)
            if problem:
                raise ValueError(f"{owner}: {problem.format(path=keystr(tree, i))}")
        rows[i] = ys if is_parameter(x) else None
    return Rows(leaves, rows, treedef)


def column_of(
    owner: str, treedef: Any, other: str, given: PyTree, name: str, tree: PyTree
) -> list:
    """The subtrees of `given` at the leaves of `tree`, whose structure is `treedef`."""
    try:
        return treedef.flatten_up_to(given)
    except (ValueError, TypeError):
        raise ValueError(
            f"{owner}: {disagreement(other, given, name, tree)} Pass trees with the "
            "same structure, such as a model and its gradients."
        ) from None


def loaded(x: Any) -> Any:
    """`x`, or the array that it stands for if it is stored, or only its shape."""
    if not is_stored(x):
        return x
    if any(isinstance(y, jax.ShapeDtypeStruct) for y in jtu.tree_leaves(x)):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return load(x)


def check_numbers(owner: str, name: str, tree: PyTree) -> None:
    """Raises a `TypeError` if there are Python numbers instead of arrays.

    A number in a module is part of the model, like the probability of `eqx.nn.Dropout`,
    and so is a number next to arrays. But if dictionaries, lists and tuples contain
    only numbers, the caller probably meant them to count.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_stored)
    if any(map(is_parameter, leaves)):
        return
    for path, x in jtu.tree_leaves_with_path(tree):
        is_plain = all(isinstance(key, jtu.DictKey | jtu.SequenceKey) for key in path)
        if is_plain and isinstance(x, int | float | complex):
            raise TypeError(
                f"{owner}: `{name}` has {_shown(x)} at "
                f"`{jtu.keystr(path) or '(the root)'}`, and no floating or complex "
                "arrays. Only these count. Convert it to an array: "
                f"`jnp.asarray({x!r}, float)`."
            )


def _problem(name, x, other, y, may_lack):
    """The problem with a leaf `y` next to `x`, if any."""
    if not is_parameter(x):
        numbers = int, float, complex
        if isinstance(x, numbers) and isinstance(y, numbers) and x != y:
            return (
                f"`{name}` has {_shown(x)} at `{{path}}`, but `{other}` has "
                f"{_shown(y)}. Only floating and complex arrays count. All other "
                "leaves belong to the model, and must be the same in both trees. Make "
                f"it an array in both, or `None` in `{other}`."
            )
        if jtu.tree_leaves(parameters(y)):
            return (
                f"`{other}` has an array at `{{path}}`, where `{name}` has "
                f"{_shown(x)}. Remove it from `{other}` with `eqx.filter`, or give "
                f"`{name}` a floating-point array there."
            )
    elif is_parameter(y):
        if y.shape != x.shape:
            return (
                f"shapes differ at `{{path}}`: `{name}` has {_shown(x)}, `{other}` "
                f"has {_shown(y)}. Arrays are not broadcast: use `jnp.broadcast_to`, "
                "or `eqopt.tree.scale` for a single number."
            )
    elif y is not None or not may_lack:
        way_out = ", or `None` to keep the array of the first tree unchanged" * may_lack
        return (
            f"`{name}` has {_shown(x)} at `{{path}}`, but `{other}` has {_shown(y)}. "
            f"It needs a floating-point array of that shape{way_out}."
        )
    return None


def _shown(x):
    if hasattr(x, "dtype"):
        text = f"{x.dtype}{list(x.shape)}"
    else:
        text = "None" if x is None else f"{x!r} of type {type(x).__name__}"
    return text.replace("{", "{{").replace("}", "}}")


def elementwise(
    owner: str,
    fn: Callable,
    trees: Mapping[str, PyTree],
    *,
    may_lack: bool = True,
) -> PyTree:
    """The first of `trees` with each array `x` replaced by `fn(x, y)`.

    With more than two trees, `fn` is then applied to the result and the array of the
    next tree, and so on. The result is computed in at least float32 and rounded once to
    the dtype of `x`. Where a tree has `None`, it is skipped.

    **Raises:**

    The errors of `together`, and a `TypeError` that names the key path if an imaginary
    part would be lost.
    """
    leaves, rows, treedef = together(owner, trees, may_lack=may_lack)
    fold = lambda *xs: functools.reduce(fn, xs)
    new = list(leaves)
    for i, (x, row) in enumerate(zip(leaves, rows, strict=True)):
        ys = [y for y in row or () if y is not None]
        if ys:
            new[i] = _stored(owner, _computed(fold, x, *ys), x, trees, i)
    return treedef.unflatten(new)


def _computed(fn, *leaf):
    leaf = [jnp.asarray(x) for x in leaf]  # from NumPy, too
    real = compute_dtype(leaf)
    # All dtypes are explicit here, and the result is rounded to the dtype of the first.
    with jax.numpy_dtype_promotion("standard"):
        return fn(*(widen(x, real) for x in leaf))


def widened(*arrays: Any) -> list:
    """The arrays in a common dtype, in at least the precision of float32.

    It is complex if one of them is.
    """
    found = [jnp.asarray(x) for x in arrays]
    dtype = common_dtype(compute_dtype(found), *(x.dtype for x in found))
    return [x.astype(dtype) for x in found]


def _stored(owner, value, x, trees, i):
    if jnp.iscomplexobj(value) and not jnp.iscomplexobj(x):
        name, tree = next(iter(trees.items()))
        raise TypeError(
            f"{owner}: the result is complex at `{keystr(tree, i)}`, but `{name}`, "
            f"which gives it its dtype, is {x.dtype}. Cast it first, "
            f"`eqopt.tree.cast({name}, jnp.complex64)`, or use `eqopt.tree.real` of "
            "the complex tree."
        )
    return value.astype(own_dtype(x))


def own_dtype(x: Any) -> np.dtype:
    """The dtype of an array in JAX, where NumPy's float64 may become float32."""
    return jax.dtypes.canonicalize_dtype(x.dtype)


def mapped(owner: str, fn: Callable, name: str, tree: PyTree) -> PyTree:
    """`tree`, the argument `name`, with `fn(x)` instead of each array `x`.

    Computed and rounded as in `elementwise`.
    """
    check_numbers(owner, name, tree)
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    new = list(leaves)
    for i, x in enumerate(leaves):
        if is_parameter(x):
            x = loaded(x)
            new[i] = _stored(owner, _computed(fn, x), x, {name: tree}, i)
    return treedef.unflatten(new)


def replaced(owner: str, fn: Callable, tree: PyTree) -> PyTree:
    """`tree` with `fn(x)` instead of each array `x`; everything else stays unchanged."""
    check_numbers(owner, "tree", tree)
    new = lambda x: fn(loaded(x)) if is_parameter(x) else x
    return jtu.tree_map(new, tree, is_leaf=is_stored)


def arrays_of(owner: str, tree: PyTree) -> list:
    """The arrays in `tree`, an argument of `owner` with that name."""
    return [*map(loaded, leaves_of(owner, tree))]


def leaves_of(owner: str, tree: PyTree) -> list:
    """The same, but stored arrays are not loaded."""
    leaves = jtu.tree_leaves(parameters(tree), is_leaf=is_stored)
    if not leaves:
        check_numbers(owner, "tree", tree)
    return leaves


def check_real(owner: str, name: str, tree: PyTree, instead: str) -> None:
    """Raises a `TypeError` that names the key path of a complex array in `tree`."""
    for path, x in jtu.tree_leaves_with_path(parameters(tree), is_leaf=is_stored):
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(
                f"{owner}: `{name}` must be real, but is complex at "
                f"`{jtu.keystr(path) or '(the root)'}`. {instead}"
            )


def number(owner: str, name: str, value: Any, complex_too: bool = False) -> Any:
    """`value`, for arrays of any dtype; raises unless it is a number or 0-d array.

    Python numbers keep all digits; arrays get at least the precision of float32.
    """
    kinds = "a real or complex number" if complex_too else "a real number"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        python = (int, float, complex) if complex_too else (int, float)
        is_right = isinstance(value, python) and not isinstance(value, bool)
    else:
        is_right = jnp.issubdtype(dtype, jnp.number) and (
            complex_too or not jnp.issubdtype(dtype, jnp.complexfloating)
        )
    if not is_right:
        found = f"{value!r} of type {type(value).__name__}" if dtype is None else dtype
        raise TypeError(
            f"{owner}: `{name}` must be {kinds} or a 0-d array, but is "
            + (f"{found}." if dtype is None else f"of dtype {found}.")
        )
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: `{name}` must be {kinds} or a 0-d array, but has shape "
            f"{np.shape(value)}. It is not broadcast: to scale each leaf by its own "
            "array, pass a tree to `eqopt.tree.mul`; for several numbers at once, use "
            "`jax.vmap`."
        )
    if dtype is None:
        return float(value) if isinstance(value, int) else value
    return jnp.asarray(value, wide_dtype(jnp.result_type(value)))
