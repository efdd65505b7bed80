"""One value from all the arrays of a tree."""

import builtins
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from .._errors import InputError
from .._platforms import compute_once
from .._trees.leaves import parameters
from .._trees.stored import is_stored
from .._types import PyTree, RealScalarLike
from ..numerics._numerics import (
    abs_sq,
    at_least_float32,
    common_dtype,
    max_or_nan,
    safe_sqrt,
)
from ._arithmetic import arrays_of, check_numbers, check_real, number, together, widened


def norm(
    tree: PyTree, ord: int | float | str = 2, *, squared: bool = False
) -> Float[Array, ""]:
    r"""The norm of all inexact arrays in `tree`, taken together as one vector.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole Equinox model.
    - `ord`: `1`, `2` or `inf` (also `"inf"`): $\sum_i |x_i|$, $\sqrt{\sum_i |x_i|^2}$ or
        $\max_i |x_i|$.
    - `squared`: whether to return the square of the norm.

    **Returns:**

    A 0-d array in the widest precision in `tree`, at least float32. It is 0 if there
    are no arrays, and its gradient is 0 at 0. The 2-norm adds squares, which have half
    of the exponents: in float32, it is infinite above 1.8e19, and numbers below 1e-19
    count less and less.

    **Raises:**

    A `ValueError` for any other `ord`.
    """
    if ord not in _REDUCTIONS:
        raise InputError(f"`ord` must be 1, 2 or 'inf', but is {ord!r}.")
    leaf, combine = _REDUCTIONS[ord]
    value = total(combine, [leaf(x) for x in arrays_of(tree)])
    if ord == 2:
        return value if squared else safe_sqrt(value)
    return value * value if squared else value


def total(combine: Callable, parts: list, start: float = 0) -> Array:
    """Combines the numbers of several arrays; `start` if there are none."""
    if not parts:
        return jnp.asarray(start, float)
    dtype = common_dtype(*(part.dtype for part in parts))
    return combine(compute_once(jnp.stack([x.astype(dtype) for x in parts])))


@jax.jit
def _sum_of_squares(x):
    return jnp.sum(abs_sq(at_least_float32(x)))


@jax.jit
def _sum_of_moduli(x):
    return jnp.sum(jnp.abs(at_least_float32(x)))


@jax.jit
def _largest_modulus(x):
    return max_or_nan(jnp.abs(at_least_float32(x)), initial=0)


_REDUCTIONS = {
    1: (_sum_of_moduli, jnp.sum),
    2: (_sum_of_squares, jnp.sum),
    float("inf"): (_largest_modulus, jnp.max),
    "inf": (_largest_modulus, jnp.max),
}


def largest(arrays: list[Inexact[Array, "..."]]) -> Float[Array, ""]:
    r"""About $\max_i |x_i|$, or 1 if that is 0: divided by it, no square overflows.

    It is treated as a constant: results after the division must not depend on it.
    """
    tops = [jnp.max(jnp.abs(lax.stop_gradient(x)), initial=0) for x in arrays]
    dtype = common_dtype(*(top.dtype for top in tops))
    top = jnp.max(jnp.stack([x.astype(dtype) for x in tops]))
    # Compilers multiply by the reciprocal, which would be flushed to zero on a CPU if
    # it were denormal.
    top = jnp.minimum(top, 0.5 / jnp.finfo(top.dtype).tiny.item())
    return jnp.where(top == 0, 1, top)


def sum(tree: PyTree) -> Inexact[Array, ""]:
    """The sum of all numbers in the arrays of `tree`.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole Equinox model.

    **Returns:**

    A 0-d array in the dtype to which the dtypes of `tree` promote, in at least the
    precision of float32; 0 if there are no arrays.
    """
    return total(jnp.sum, [jnp.sum(*widened(x)) for x in arrays_of(tree)])


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
    return _largest(tree, 1)


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
    return -_largest(tree, -1)


def _largest(tree: PyTree, sign: int) -> Any:
    """The largest of all numbers, each times `sign`."""
    instead = "Use `eqopt.tree.real`, or `tree.norm(x, 'inf')` for the largest modulus."
    check_real("tree", tree, instead)
    arrays = [sign * wide for x in arrays_of(tree) for wide in widened(x)]
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
    check_numbers("tree", tree)
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
    leaves, rows, _ = together(trees, may_lack=True)
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
    rtol = number("rtol", rtol)
    atol = number("atol", atol)
    leaves, rows, _ = together({"a": a, "b": b}, may_lack=False)
    close = []
    for leaf, row in zip(leaves, rows, strict=True):
        if row is not None:
            x, y = widened(leaf, *row)
            r, a = (jnp.asarray(bound, x.real.dtype) for bound in (rtol, atol))
            close.append(jnp.allclose(x, y, r, a, equal_nan))
    return jnp.all(jnp.stack(close)) if close else jnp.asarray(True)
