"""The linear assignment problem."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from .._jax_internals import is_traced
from ..numerics._numerics import at_least_float32
from ._augmentation import Assignment, assign_rest
from ._reduction import reduce_and_assign


def hungarian_algorithm(
    cost_matrix: Any,
) -> tuple[Int32[Array, " pairs"], Int32[Array, " pairs"]]:
    r"""Pairs rows with columns so that the sum of costs is minimal.

    For an $n \times m$ matrix $C$, it chooses $\min(n, m)$ elements with the smallest
    sum, no two of them in the same row or column.

    First, many rows get one of their cheapest columns, all at once. The other rows are
    then assigned along shortest augmenting paths, in at most
    $O(\min(n, m)^2 \max(n, m))$ operations. It works under `jax.jit` and `jax.vmap`.
    The indices are constants in derivatives, so
    `jax.grad(lambda costs: costs[hungarian_algorithm(costs)].sum())` is the gradient of
    the least sum.

    !!! example

        ```python
        costs = jnp.array([[8, 4, 7], [5, 2, 3], [9, 6, 7], [9, 4, 8]])
        i, j = eqopt.assignment.hungarian_algorithm(costs)
        i, j, costs[i, j].sum()  # [0, 1, 3], [0, 2, 1], 15
        ```

    **Arguments:**

    - `cost_matrix`: $C$, a real array of shape `(n, m)`. A pair with cost `inf` is
        forbidden. Costs are converted to at least float32, and integers to floats of
        the default precision; float32 is exact up to $2^{24}$.

    **Returns:**

    The indices of rows, ascending, and of their columns: two int32 arrays of
    $\min(n, m)$ elements. If every assignment contains forbidden pairs, so does the
    result, and `cost_matrix[i, j].sum()` is infinite.

    **Raises:**

    A `ValueError` unless there are two axes, or if there is a NaN or `-inf` (in a
    traced array, these are treated as `inf`), and a `TypeError` for costs that are not
    real.

    ??? cite "Reference"

        ```bibtex
        @article{jonker1987shortest,
            author = {Jonker, Roy and Volgenant, Anton},
            title = {A Shortest Augmenting Path Algorithm for Dense and Sparse Linear
                     Assignment Problems},
            journal = {Computing},
            volume = {38},
            pages = {325--340},
            year = {1987},
        }
        ```
    """
    return _solve(_checked("hungarian_algorithm", cost_matrix), _reduce_and_assign_rest)


def _reduce_and_assign_rest(costs: Array, state: Assignment) -> Assignment:
    return assign_rest(costs, reduce_and_assign(costs, state))


def base_hungarian_algorithm(
    cost_matrix: Any,
) -> tuple[Int32[Array, " pairs"], Int32[Array, " pairs"]]:
    r"""Pairs rows with columns with minimal costs, using only shortest paths.

    Like [`eqopt.assignment.hungarian_algorithm`][], which is faster, but without its
    quick start: each row in turn gets a column along a shortest augmenting path. If
    there are several solutions, the two may choose different ones.

    **Arguments:**

    - `cost_matrix`: $C$, a real array of shape `(n, m)`. A pair with cost `inf` is
        forbidden.

    **Returns:**

    The indices of rows, ascending, and of their columns: two int32 arrays of
    $\min(n, m)$ elements.

    **Raises:**

    The errors of [`eqopt.assignment.hungarian_algorithm`][].

    ??? cite "Reference"

        ```bibtex
        @article{crouse2016implementing,
            author = {Crouse, David F.},
            title = {On Implementing {2D} Rectangular Assignment Algorithms},
            journal = {IEEE Transactions on Aerospace and Electronic Systems},
            volume = {52},
            number = {4},
            pages = {1679--1696},
            year = {2016},
        }
        ```
    """
    return _solve(_checked("base_hungarian_algorithm", cost_matrix), assign_rest)


def _checked(owner: str, costs: Any) -> Array:
    dtype = getattr(costs, "dtype", None)
    if dtype is None:
        raise TypeError(
            f"{owner}: `cost_matrix` must be an array, but has type "
            f"{type(costs).__name__}. Convert it with `jnp.asarray`."
        )
    if not (jnp.issubdtype(dtype, np.floating) or jnp.issubdtype(dtype, np.integer)):
        raise TypeError(
            f"{owner}: `cost_matrix` must have a floating-point or integer dtype, but "
            f"has dtype {dtype}."
        )
    if np.ndim(costs) != 2:
        raise ValueError(
            f"{owner}: `cost_matrix` must have 2 axes, but has shape "
            f"{np.shape(costs)}. For a stack of matrices, use "
            f"`jax.vmap(eqopt.assignment.{owner})`."
        )
    if not is_traced(costs) and jnp.issubdtype(dtype, np.floating):
        wrong = ~(np.asarray(costs) > -np.inf)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise ValueError(
                f"{owner}: `cost_matrix` must not have NaN or -inf, but has "
                f"{np.asarray(costs)[i, j]} at [{i}, {j}]. For a forbidden pair, use "
                "inf."
            )
    return jnp.asarray(costs)


@functools.partial(jax.jit, static_argnames="assign")
def _solve(costs: Array, assign: Callable) -> tuple[Array, Array]:
    costs = lax.stop_gradient(costs)
    if jnp.issubdtype(costs.dtype, np.integer):
        costs = costs.astype(jax.dtypes.canonicalize_dtype(float))
    costs = at_least_float32(costs)
    is_tall = costs.shape[0] > costs.shape[1]
    columns = _columns(costs.T if is_tall else costs, assign)
    if is_tall:
        order = jnp.argsort(columns).astype(jnp.int32)
        return columns[order], order
    return lax.iota(jnp.int32, len(columns)), columns


def _columns(costs: Array, assign: Callable) -> Array:
    """The columns of all rows; there are at least as many columns as rows."""
    rows, columns = costs.shape
    if rows == 0:
        return jnp.zeros(0, jnp.int32)
    costs = jnp.where(costs > -jnp.inf, costs, jnp.inf)
    # Each row gets one column, so a constant in all its costs would only waste digits.
    least = jnp.min(costs, 1, keepdims=True)
    costs = costs - jnp.where(least < jnp.inf, least, 0)
    empty = Assignment(
        jnp.zeros(columns, costs.dtype),
        jnp.full(columns, -1, jnp.int32),
        jnp.full(rows, -1, jnp.int32),
    )
    state = assign(costs, empty)
    # Rows without a finite assignment get the remaining columns.
    left = jnp.argsort(state.row_of >= 0).astype(jnp.int32)
    is_without = state.column_of < 0
    number = jnp.cumsum(is_without) - 1
    return jnp.where(is_without, left[number], state.column_of)
