"""Trees as vectors: sums, products, multiples, and moving averages."""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._arguments.checks import check_interval, check_scalar
from .._errors import InputError
from .._trees.leaves import disagreement, is_leaf, is_parameter, keystr, parameters
from .._trees.precision import compute_dtype, widen
from .._trees.stored import is_stored, load
from .._types import IntegerLike, PyTree, RealScalarLike
from ..numerics import _numerics
from ..numerics._numerics import common_dtype, wide_dtype


def together(trees: Mapping[str, PyTree], *, may_lack: bool) -> tuple[list, list, Any]:
    """Aligns `trees`, whose names are the names of arguments.

    `may_lack`: whether the other trees may have `None` where the first has an array.

    **Returns:**

    The leaves of the first tree, `None` included, the rows, and the structure of the
    first tree. For a leaf that is an array, the row is the list of the arrays of the
    other trees at the same position, with `None` for a tree without one. For other
    leaves, it is `None`.

    **Raises:**

    A `ValueError` that names the key path if structures, shapes or positions of arrays
    differ.
    """
    (name, tree), *others = trees.items()
    check_numbers(name, tree)
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    columns = [column_of(treedef, other, x, name, tree) for other, x in others]
    leaves, *columns = ([*map(loaded, column)] for column in (leaves, *columns))
    rows: list = [None] * len(leaves)
    for i, (x, *ys) in enumerate(zip(leaves, *columns, strict=True)):
        for (other, _), y in zip(others, ys, strict=True):
            if not _fits(y, x, may_lack):
                raise InputError(
                    f"`{name}` has {_shown(x)} at `{keystr(tree, i)}`, but `{other}` "
                    f"has {_shown(y)}. Arrays must have the same shapes, without "
                    "broadcasting, and everything else must be equal."
                )
        rows[i] = ys if is_parameter(x) else None
    return leaves, rows, treedef


def check_broadcasts(
    name: str, value: Any, tree: PyTree, index: int, shape: tuple[int, ...]
) -> None:
    """Raises unless a value in `name` broadcasts to the shape of a leaf of `tree`."""
    found = np.shape(value)
    # Counted from the right, each axis must be 1 or equal the axis of the leaf, and the
    # value must not have more axes.
    axes = zip(found[::-1], shape[::-1], strict=False)
    if len(found) > len(shape) or any(n not in (1, m) for n, m in axes):
        raise InputError(
            f"`{name}` must broadcast to the shape {shape} at `{keystr(tree, index)}`, "
            f"but has shape {found}."
        )


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


def column_of(treedef: Any, other: str, given: PyTree, name: str, tree: PyTree) -> list:
    """The subtrees of `given` at the leaves of `tree`, whose structure is `treedef`."""
    try:
        return treedef.flatten_up_to(given)
    except (ValueError, TypeError):
        raise InputError(disagreement(other, given, name, tree)) from None


def loaded(x: Any) -> Any:
    """`x`, or the array that it stands for if it is stored, or only its shape."""
    if not is_stored(x):
        return x
    if any(isinstance(y, jax.ShapeDtypeStruct) for y in jtu.tree_leaves(x)):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return load(x)


def check_numbers(name: str, tree: PyTree) -> None:
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
                f"`{name}` has {_shown(x)} at `{jtu.keystr(path) or '(the root)'}`, "
                f"but only arrays count. Convert it: `jnp.asarray({x!r}, float)`."
            )


def elementwise(
    fn: Callable, trees: Mapping[str, PyTree], *, may_lack: bool = True
) -> PyTree:
    """The first of `trees` with each array `x` replaced by `fn(x, *ys)`.

    The result is computed in at least float32 and rounded once to the dtype of `x`. An
    array of the first tree stays unchanged if all others have `None` there.

    **Raises:**

    The errors of `together`, and a `TypeError` that names the key path if an imaginary
    part would be lost.
    """
    leaves, rows, treedef = together(trees, may_lack=may_lack)
    new = list(leaves)
    for i, (x, row) in enumerate(zip(leaves, rows, strict=True)):
        ys = [y for y in row or () if y is not None]
        if ys or row == []:
            new[i] = _stored(_computed(fn, x, *ys), x, trees, i)
    return treedef.unflatten(new)


def _computed(fn: Callable, *leaf: Any) -> Any:
    arrays = [jnp.asarray(x) for x in leaf]  # from NumPy, too
    real = compute_dtype(arrays)
    # All dtypes are explicit here, and the result is rounded to the dtype of the first.
    with jax.numpy_dtype_promotion("standard"):
        return fn(*(widen(x, real) for x in arrays))


def _stored(value: Any, x: Any, trees: Mapping, i: int) -> Any:
    if jnp.iscomplexobj(value) and not jnp.iscomplexobj(x):
        name, tree = next(iter(trees.items()))
        raise InputError(
            f"the result is complex at `{keystr(tree, i)}`, but `{name}` is {x.dtype}. "
            f"Cast it first: `eqopt.tree.cast({name}, jnp.complex64)`."
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


def arrays_of(tree: PyTree) -> list:
    """The arrays in `tree`, an argument with that name."""
    check_numbers("tree", tree)
    return [*map(loaded, jtu.tree_leaves(parameters(tree), is_leaf=is_stored))]


def check_real(name: str, tree: PyTree, instead: str) -> None:
    """Raises an error that names the key path of a complex array in `tree`."""
    for path, x in jtu.tree_leaves_with_path(parameters(tree), is_leaf=is_stored):
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            where = jtu.keystr(path) or "(the root)"
            problem = f"`{name}` must be real, but is complex at `{where}`."
            raise InputError(f"{problem} {instead}")


def number(name: str, value: Any, complex_too: bool = False) -> Any:
    """`value`, for arrays of any dtype; raises unless it is a number or 0-d array.

    Python numbers keep all digits; arrays get at least the precision of float32.
    """
    kind = "number" if complex_too else "real number"
    start = f"`{name}` must be a {kind} or a 0-d array, but is"
    check_scalar(start, value.real if complex_too else value)
    if hasattr(value, "dtype"):
        return jnp.asarray(value, wide_dtype(jnp.result_type(value)))
    return float(value) if isinstance(value, int) else value


#
# Sums, products and multiples
#


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    r"""The sum $x + y + \dots$ of two or more trees, array by array.

    !!! example

        ```python
        model = eqopt.tree.add(model, updates)
        ```

    **Arguments:**

    - `tree_x`: any pytree, such as a whole Equinox model or gradients.
    - `tree_y`, `other_trees`: trees with the structure of `tree_x` and arrays of the
        same shapes. `None` instead of an array adds nothing.

    **Returns:**

    `tree_x` with the sums, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if complex numbers are added to real ones.
    """
    others = {f"other_trees[{i}]": tree for i, tree in enumerate(other_trees)}
    trees = {"tree_x": tree_x, "tree_y": tree_y, **others}
    fold = lambda *xs: functools.reduce(operator.add, xs)
    return elementwise(fold, trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The difference $x - y$ of two trees, array by array.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        `None` instead of an array subtracts nothing.

    **Returns:**

    `tree_x` with the differences, in the dtypes of its arrays. They are computed in at
    least float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise(operator.sub, {"tree_x": tree_x, "tree_y": tree_y})


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The product $x \odot y$ of two trees, array by array and number by number.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        Where it has `None`, the array of `tree_x` stays unchanged.

    **Returns:**

    `tree_x` with the products, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise(operator.mul, {"tree_x": tree_x, "tree_y": tree_y})


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The quotient $x / y$ of two trees, array by array and number by number.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        Where it has `None`, the array of `tree_x` stays unchanged. Division by zero
        returns infinity or NaN, as in JAX.

    **Returns:**

    `tree_x` with the quotients, in the dtypes of its arrays. They are computed in at
    least float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise(operator.truediv, {"tree_x": tree_x, "tree_y": tree_y})


def scale(scalar: RealScalarLike | complex, tree: PyTree) -> PyTree:
    r"""The multiple $s\,x$ of a tree.

    !!! example

        ```python
        updates = eqopt.tree.scale(-1e-3, grads)
        ```

    **Arguments:**

    - `scalar`: $s$, a number or a 0-d array, of any dtype.
    - `tree`: $x$, any pytree, such as gradients or a whole model.

    **Returns:**

    `tree` with its arrays multiplied, in their own dtypes. Everything else in it stays
    unchanged.

    **Raises:**

    A `ValueError` if `scalar` has axes, and a `TypeError` if it is complex and an array
    of the tree is real.
    """
    s = number("scalar", scalar, complex_too=True)
    return elementwise(lambda x: s * x, {"tree": tree})


def add_scale(
    tree_x: PyTree, scalar: RealScalarLike | complex, tree_y: PyTree
) -> PyTree:
    r"""The sum $x + s\,y$ of a tree and a multiple of another tree.

    !!! example

        ```python
        model = eqopt.tree.add_scale(model, -1e-3, grads)
        ```

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `scalar`: $s$, a number or a 0-d array, of any dtype.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        `None` instead of an array adds nothing.

    **Returns:**

    `tree_x` with the sums, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once: the product is not rounded before it is added. Everything
    else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, or if
    `scalar` has axes, and a `TypeError` if a complex result would replace a real array.
    """
    s = number("scalar", scalar, complex_too=True)
    trees = {"tree_x": tree_x, "tree_y": tree_y}
    return elementwise(lambda x, y: x + s * y, trees)


#
# Exponential moving averages of powers of updates, as optimizers keep them
#


def update_moment(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, order: float | int
) -> PyTree:
    r"""The moving average $\beta\,m + (1 - \beta)\,g^k$ of a power of the updates.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first [`eqopt.tree.zeros_like`][] of it.
        Where `updates` has `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `order`: $k$, a positive number: 1 for the first moment, 2 for the second. For the
        second moment of complex updates, use
        [`eqopt.tree.update_moment_per_elem_norm`][].

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ; a `ValueError`
    if `decay` or `order` is out of range; a `TypeError` if updates are complex and their
    moments are real.
    """
    return _averaged(lambda g: g**order, updates, moments, decay, order)


def update_moment_per_elem_norm(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, order: float | int
) -> PyTree:
    r"""The moving average $\beta\,m + (1 - \beta)\,|g|^k$ of a power of the moduli.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first [`eqopt.tree.zeros_like`][] of it.
        The moments of complex updates may be real, and should be. Where `updates` has
        `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `order`: $k$, a positive number: 2 for the second moment.

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32;
    the derivative at $g = 0$ is finite for $k \ge 1$.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `ValueError` if `decay` or `order` is out of range.
    """
    return _averaged(lambda g: _modulus_to(order, g), updates, moments, decay, order)


def _averaged(power, updates, moments, decay, order) -> PyTree:
    decay = _within("decay", decay)
    check_interval("order", order, 0, includes_low=False)
    averaged = lambda m, g: decay * m + (1 - decay) * power(g)
    return elementwise(averaged, {"moments": moments, "updates": updates})


def _modulus_to(order: float | int, g: Any) -> Any:
    if order % 2 == 0:
        return _numerics.abs_sq(g) ** int(order // 2)
    return _modulus(g) ** order


def _modulus(g: Any) -> Any:
    if not jnp.iscomplexobj(g):
        return jnp.abs(g)
    is_zero = g == 0  # where the derivative would be NaN
    return jnp.where(is_zero, 0, jnp.abs(jnp.where(is_zero, 1, g)))


def update_infinity_moment(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, eps: RealScalarLike
) -> PyTree:
    r"""The decaying maximum $\max(\beta\,m,\; |g| + \varepsilon)$ of the moduli.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first zeros. The moments of complex
        updates are real. Where `updates` has `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `eps`: $\varepsilon \ge 0$, a number or a 0-d array.

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32.
    NaN stays NaN.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ; a
    `ValueError` if `decay` or `eps` is out of range; a `TypeError` for complex moments.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """
    decay = _within("decay", decay)
    eps = _within("eps", eps, math.inf)
    instead = "Start with `eqopt.tree.zeros_like(eqopt.tree.real(updates))`."
    check_real("moments", moments, instead)
    largest = lambda m, g: jnp.maximum(decay * m, _modulus(g) + eps)
    return elementwise(largest, {"moments": moments, "updates": updates})


def bias_correction(
    moment: PyTree, decay: RealScalarLike, count: IntegerLike
) -> PyTree:
    r"""The moving average $m / (1 - \beta^t)$, corrected for its start at zero.

    **Arguments:**

    - `moment`: $m$, a tree of moments, as returned by [`eqopt.tree.update_moment`][].
    - `decay`: $\beta$, the same number as for the moments, or a 0-d array, in $[0, 1)$.
    - `count`: $t \ge 1$, the number of updates in the average, an integer or a 0-d
        integer array.

    **Returns:**

    The corrected `moment`, in its own dtypes. The divisor is
    [`eqopt.numerics.bias_correction`][], computed in at least float32.

    **Raises:**

    A `ValueError` if `decay` is out of range or `count` is not positive. Traced values
    are not checked.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """
    decay = _within("decay", decay, includes_high=False)
    check_interval("count", count, 1)
    divisor = _numerics.bias_correction(decay, jnp.asarray(count))
    return elementwise(lambda m: m / divisor, {"moment": moment})


def _within(name: str, value: Any, high: float = 1, includes_high: bool = True):
    """`value` in at least float32; raises unless it is in range."""
    value = number(name, value)
    check_interval(name, value, 0, high, includes_high=includes_high)
    return value
