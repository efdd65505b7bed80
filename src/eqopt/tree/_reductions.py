"""One value from all the arrays of a tree."""

import builtins
import math
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Inexact

from .._trees.leaves import parameters
from .._trees.stored import is_stored
from .._types import PyTree, RealScalarLike
from ..numerics._numerics import max_or_nan
from ._norm import total
from ._together import arrays_of, check_numbers, check_real, number, together, widened


def sum(tree: PyTree) -> Inexact[Array, ""]:
    """The sum of all numbers in the arrays of `tree`.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole Equinox model.

    **Returns:**

    A 0-d array in the dtype to which the dtypes of `tree` promote, in at least the
    precision of float32; 0 if there are no arrays.
    """
    return total(jnp.sum, [jnp.sum(*widened(x)) for x in arrays_of("sum", tree)])


def max(tree: PyTree) -> Float[Array, ""]:
    """The largest number in the arrays of `tree`; NaN if one of them is NaN.

    **Arguments:**

    - `tree`: any pytree of real arrays, such as gradients or a whole Equinox model.

    **Returns:**

    A 0-d array in the dtype to which the dtypes of `tree` promote, at least float32;
    minus infinity if there are no numbers.

    **Raises:**

    A `TypeError` that names the key path of a complex array.
    """
    return _largest("max", tree, 1)


def min(tree: PyTree) -> Float[Array, ""]:
    """The smallest number in the arrays of `tree`; NaN if one of them is NaN.

    **Arguments:**

    - `tree`: any pytree of real arrays, such as gradients or a whole Equinox model.

    **Returns:**

    A 0-d array in the dtype to which the dtypes of `tree` promote, at least float32;
    infinity if there are no numbers.

    **Raises:**

    A `TypeError` that names the key path of a complex array.
    """
    return -_largest("min", tree, -1)


def _largest(owner: str, tree: PyTree, sign: int) -> Any:
    """The largest of all numbers, each times `sign`."""
    instead = "Use `eqopt.tree.real`, or `tree.norm(x, 'inf')` for the largest modulus."
    check_real(owner, "tree", tree, instead)
    arrays = [sign * wide for x in arrays_of(owner, tree) for wide in widened(x)]
    parts = [max_or_nan(x, initial=-jnp.inf) for x in arrays]
    return total(max_or_nan, parts, -jnp.inf)


def size(tree: PyTree) -> int:
    """The number of elements in the arrays of `tree`: its parameters.

    **Arguments:**

    - `tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s. Integer arrays do not count. A complex number counts
        once.

    **Returns:**

    A Python integer, which cannot overflow.
    """
    check_numbers("size", "tree", tree)
    leaves = jtu.tree_leaves(parameters(tree), is_leaf=is_stored)
    return builtins.sum(math.prod(x.shape) for x in leaves)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Inexact[Array, ""]:
    r"""The inner product $\langle x, y \rangle = \sum_i \bar x_i y_i$ of two trees.

    **Arguments:**

    - `tree_x`, `tree_y`: trees with the same structure and arrays of the same shapes,
        such as gradients and updates, or whole models. Complex numbers in `tree_x` are
        conjugated. Where `tree_y` has `None`, nothing is added.

    **Returns:**

    A 0-d array in the dtype to which the dtypes of the trees promote, in at least the
    precision of float32, also on hardware that multiplies matrices in a lower one; 0 if
    there are no arrays.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ.
    """
    trees = {"tree_x": tree_x, "tree_y": tree_y}
    leaves, rows, _ = together("vdot", trees, may_lack=True)
    parts = []
    for x, row in zip(leaves, rows, strict=True):
        if row and row[0] is not None:
            left, right = widened(x, *row)
            parts.append(jnp.sum(left.conj() * right))
    return total(jnp.sum, parts)


def allclose(
    a: PyTree,
    b: PyTree,
    rtol: RealScalarLike = 1e-5,
    atol: RealScalarLike = 1e-8,
    equal_nan: bool = False,
) -> Bool[Array, ""]:
    r"""Whether the arrays of two trees are equal up to rounding.

    They are if $|a - b| \le \text{atol} + \text{rtol}\,|b|$ for all numbers. To compare
    all leaves of two trees, exactly by default, use `eqx.tree_equal`.

    **Arguments:**

    - `a`, `b`: trees with the same structure and arrays of the same shapes, in any
        dtypes. They are compared in at least float32. Leaves that are not inexact
        arrays are ignored.
    - `rtol`, `atol`: the relative and the absolute tolerance.
    - `equal_nan`: whether two NaNs are equal. Defaults to `False`.

    **Returns:**

    A 0-d bool array; true if there are no arrays.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, or if only one
    tree has an array.
    """
    rtol = number("allclose", "rtol", rtol)
    atol = number("allclose", "atol", atol)
    leaves, rows, _ = together("allclose", {"a": a, "b": b}, may_lack=False)
    close = []
    for leaf, row in zip(leaves, rows, strict=True):
        if row is not None:
            x, y = widened(leaf, *row)
            r, a = (jnp.asarray(bound, x.real.dtype) for bound in (rtol, atol))
            close.append(jnp.allclose(x, y, r, a, equal_nan))
    return jnp.all(jnp.stack(close)) if close else jnp.asarray(True)
