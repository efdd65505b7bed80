"""Several trees and numbers, leaf by leaf: shared by all arithmetic."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._arguments.checks import check_scalar
from .._errors import InputError
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
            if not _fits(y, x, may_lack):
                raise InputError(
                    owner,
                    f"`{name}` has {_shown(x)} at `{keystr(tree, i)}`, but `{other}` "
                    f"has {_shown(y)}. Arrays must have the same shapes, without "
                    "broadcasting, and everything else must be equal.",
                )
        rows[i] = ys if is_parameter(x) else None
    return Rows(leaves, rows, treedef)


def _fits(y: Any, x: Any, may_lack: bool) -> bool:
    """Whether another tree may have `y` where the first one has `x`."""
    if is_parameter(x):
        return y.shape == x.shape if is_parameter(y) else y is None and may_lack
    numbers = int | float | complex
    if isinstance(x, numbers) and isinstance(y, numbers):
        return x == y
    return not jtu.tree_leaves(parameters(y))


def _shown(x: Any) -> str:
    if hasattr(x, "dtype"):
        return f"{x.dtype}{list(x.shape)}"
    return "None" if x is None else f"{x!r} of type {type(x).__name__}"


def column_of(
    owner: str, treedef: Any, other: str, given: PyTree, name: str, tree: PyTree
) -> list:
    """The subtrees of `given` at the leaves of `tree`, whose structure is `treedef`."""
    try:
        return treedef.flatten_up_to(given)
    except (ValueError, TypeError):
        raise InputError(owner, disagreement(other, given, name, tree)) from None


def loaded(x: Any) -> Any:
    """`x`, or the array that it stands for if it is stored, or only its shape."""
    if not is_stored(x):
        return x
    if any(isinstance(y, jax.ShapeDtypeStruct) for y in jtu.tree_leaves(x)):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return load(x)


def check_numbers(owner: str, name: str, tree: PyTree) -> None:
    """Raises an error if there are Python numbers instead of arrays.

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
            raise InputError(
                owner,
                f"`{name}` has {_shown(x)} at `{jtu.keystr(path) or '(the root)'}`, but "
                f"only arrays count. Convert it: `jnp.asarray({x!r}, float)`.",
            )


def elementwise(
    owner: str, fn: Callable, trees: Mapping[str, PyTree], *, may_lack: bool = True
) -> PyTree:
    """The first of `trees` with each array `x` replaced by `fn(x, *ys)`.

    The result is computed in at least float32 and rounded once to the dtype of `x`. An
    array of the first tree stays unchanged if all others have `None` there.

    **Raises:**

    The errors of `together`, and a `TypeError` that names the key path if an imaginary
    part would be lost.
    """
    leaves, rows, treedef = together(owner, trees, may_lack=may_lack)
    new = list(leaves)
    for i, (x, row) in enumerate(zip(leaves, rows, strict=True)):
        ys = [y for y in row or () if y is not None]
        if ys or row == []:
            new[i] = _stored(owner, _computed(fn, x, *ys), x, trees, i)
    return treedef.unflatten(new)


def _computed(fn: Callable, *leaf: Any) -> Any:
    arrays = [jnp.asarray(x) for x in leaf]  # from NumPy, too
    real = compute_dtype(arrays)
    # All dtypes are explicit here, and the result is rounded to the dtype of the first.
    with jax.numpy_dtype_promotion("standard"):
        return fn(*(widen(x, real) for x in arrays))


def _stored(owner: str, value: Any, x: Any, trees: Mapping, i: int) -> Any:
    if jnp.iscomplexobj(value) and not jnp.iscomplexobj(x):
        name, tree = next(iter(trees.items()))
        raise InputError(
            owner,
            f"the result is complex at `{keystr(tree, i)}`, but `{name}` is {x.dtype}. "
            f"Cast it first: `eqopt.tree.cast({name}, jnp.complex64)`.",
        )
    return value.astype(own_dtype(x))


def widened(*arrays: Any) -> list:
    """The arrays in a common dtype, in at least the precision of float32.

    It is complex if one of them is.
    """
    found = [jnp.asarray(x) for x in arrays]
    dtype = common_dtype(compute_dtype(found), *(x.dtype for x in found))
    return [x.astype(dtype) for x in found]


def own_dtype(x: Any) -> np.dtype:
    """The dtype of an array in JAX, where NumPy's float64 may become float32."""
    return jax.dtypes.canonicalize_dtype(x.dtype)


def replaced(fn: Callable, tree: PyTree) -> PyTree:
    """`tree` with `fn(x)` instead of each array `x`; everything else stays unchanged."""
    new = lambda x: fn(loaded(x)) if is_parameter(x) else x
    return jtu.tree_map(new, tree, is_leaf=is_stored)


def arrays_of(owner: str, tree: PyTree) -> list:
    """The arrays in `tree`, an argument of `owner` with that name."""
    check_numbers(owner, "tree", tree)
    return [*map(loaded, jtu.tree_leaves(parameters(tree), is_leaf=is_stored))]


def check_real(owner: str, name: str, tree: PyTree, instead: str) -> None:
    """Raises an error that names the key path of a complex array in `tree`."""
    for path, x in jtu.tree_leaves_with_path(parameters(tree), is_leaf=is_stored):
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise InputError(
                owner,
                f"`{name}` must be real, but is complex at "
                f"`{jtu.keystr(path) or '(the root)'}`. {instead}",
            )


def number(owner: str, name: str, value: Any, complex_too: bool = False) -> Any:
    """`value`, for arrays of any dtype; raises unless it is a number or 0-d array.

    Python numbers keep all digits; arrays get at least the precision of float32.
    """
    kind = "number" if complex_too else "real number"
    start = f"`{name}` must be a {kind} or a 0-d array, but is"
    if getattr(value, "dtype", None) == jnp.bool_:
        value = value.astype(int)
    check_scalar(owner, start, value.real if complex_too else value)
    if hasattr(value, "dtype"):
        return jnp.asarray(value, wide_dtype(jnp.result_type(value)))
    return float(value) if isinstance(value, int) else value
