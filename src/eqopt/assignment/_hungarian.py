"""The linear assignment problem."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Real

from .._errors import InputError
from .._jax_internals import is_traced
from ..numerics._numerics import at_least_float32


def hungarian_algorithm(
    cost_matrix: Real[Array | np.ndarray, "rows columns"],
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
    return _solve(_checked(cost_matrix), starts_quickly=True)


def base_hungarian_algorithm(
    cost_matrix: Real[Array | np.ndarray, "rows columns"],
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
    return _solve(_checked(cost_matrix), starts_quickly=False)


def _checked(costs: Array | np.ndarray) -> Array:
    if not is_traced(costs) and jnp.issubdtype(costs.dtype, np.floating):
        wrong = ~(np.asarray(costs) > -np.inf)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise InputError(
                f"`cost_matrix` must not have NaN or -inf, but has {costs[i, j]} at "
                f"[{i}, {j}]. For a forbidden pair, use inf."
            )
    return jnp.asarray(costs)


@functools.partial(jax.jit, static_argnames="starts_quickly")
def _solve(costs: Array, starts_quickly: bool) -> tuple[Array, Array]:
    costs = lax.stop_gradient(costs)
    if jnp.issubdtype(costs.dtype, np.integer):
        costs = costs.astype(jax.dtypes.canonicalize_dtype(float))
    costs = at_least_float32(costs)
    is_tall = costs.shape[0] > costs.shape[1]
    columns = _columns(costs.T if is_tall else costs, starts_quickly)
    if is_tall:
        order = jnp.argsort(columns).astype(jnp.int32)
        return columns[order], order
    return lax.iota(jnp.int32, len(columns)), columns


def _columns(costs: Array, starts_quickly: bool) -> Array:
    """The columns of all rows; there are at least as many columns as rows."""
    rows, columns = costs.shape
    if rows == 0:
        return jnp.zeros(0, jnp.int32)
    costs = jnp.where(costs > -jnp.inf, costs, jnp.inf)
    # Each row gets one column, so a constant in all its costs would only waste digits.
    least = jnp.min(costs, 1, keepdims=True)
    costs = costs - jnp.where(least < jnp.inf, least, 0)
    none = lambda size: jnp.full(size, -1, jnp.int32)
    empty = _Assignment(jnp.zeros(columns, costs.dtype), none(columns), none(rows))
    state = _reduce_and_assign(costs, empty) if starts_quickly else empty
    state = _assign_rest(costs, state)
    # Rows without a finite assignment get the remaining columns.
    left = jnp.argsort(state.row_of >= 0).astype(jnp.int32)
    is_without = state.column_of < 0
    number = jnp.cumsum(is_without) - 1
    return jnp.where(is_without, left[number], state.column_of)


class _Assignment(NamedTuple):
    """The prices of columns, and the row of each column, -1 for none."""

    prices: Float[Array, " columns"]
    row_of: Int32[Array, " columns"]
    column_of: Int32[Array, " rows"]


#
# A quick start: most rows can have one of their cheapest columns.
#


def _reduce_and_assign(costs, state):
    """Assigns many rows at once, each to a column with its smallest reduced cost.

    **Arguments:**

    - `costs`: with a minimum of zero in each row.
    - `state`: without any assignment.
    """
    rows, columns = costs.shape
    prices = state.prices
    if rows == columns:
        # The price of a column that stays free must be zero. Here, no column stays
        # free.
        least = jnp.min(costs, 0)
        prices = jnp.where(least < jnp.inf, least, 0)
        costs = costs - prices[None]
    i = lax.iota(jnp.int32, rows)[:, None]
    j = lax.iota(jnp.int32, columns)[None]
    # Of equally good columns, row i chooses the next one from i on, so that rows choose
    # different columns.
    is_best = (costs == jnp.min(costs, 1, keepdims=True)) & (costs < jnp.inf)
    wait = jnp.min(jnp.where(is_best, (j - i) % columns, columns), 1, keepdims=True)
    is_wanted = (j - i) % columns == wait
    # If several rows choose the same column, the first one gets it.
    first = jnp.min(jnp.where(is_wanted, i, rows), 0)
    row_of = jnp.where(first < rows, first, -1)
    has_got = is_wanted & (first[None] == i)
    column_of = jnp.max(jnp.where(has_got, j, -1), 1)
    return _Assignment(prices, row_of, column_of)


#
# Assigns rows one by one along shortest augmenting paths.
#
# Columns have prices $v$: 0 at first, and never raised. Each assigned row has a column
# with minimal reduced cost $C_{ij} - v_j$. A new row may take a column from another row,
# which takes one from the next, and so on until a column is free. Of all such paths, the
# path with the smallest increase in cost is used. Then the prices are updated from the
# known distances, so that this property holds again.
#


def _assign_rest(costs, state):
    """Assigns all rows without a column, if this has a finite cost."""
    rows = jnp.argsort(state.column_of >= 0).astype(jnp.int32)
    count = jnp.sum(state.column_of < 0)
    return lax.fori_loop(0, count, lambda i, s: _augment(costs, s, rows[i]), state)


class _Search(NamedTuple):
    """Dijkstra's algorithm over the columns.

    The `distance` is final for columns that are `known`, and the smallest so far for
    others. `before` is the row that it comes from. `column` is the nearest column that
    is not yet known, at distance `reached`.
    """

    distance: Float[Array, " columns"]
    known: Bool[Array, " columns"]
    before: Int32[Array, " columns"]
    column: Int32[Array, ""]
    is_free: Bool[Array, ""]
    reached: Float[Array, ""]


def _augment(costs, state, row):
    found = _search(costs, state, row)
    is_possible = found.reached < jnp.inf
    # The prices of columns that are not known stay unchanged.
    gain = jnp.where(found.known & is_possible, found.reached - found.distance, 0)
    end = jnp.where(is_possible, found.column, -1)
    return _flip(found.before, state._replace(prices=state.prices - gain), row, end)


def _search(costs, state, row):
    columns = costs.shape[1]
    numbers = lax.iota(jnp.int32, columns)
    # A free column takes precedence over others at the same distance. Otherwise, if all
    # costs were equal, each path would go through all columns. On a CPU, two minima are
    # faster than one `argmin`.
    ranks = jnp.where(state.row_of < 0, numbers, numbers + columns)

    def nearest(distance):
        least = jnp.min(distance)
        rank = jnp.min(jnp.where(distance == least, ranks, 2 * columns))
        return rank % columns, rank < columns, least

    def is_going_on(search):
        return ~search.is_free & (search.reached < jnp.inf)

    def step(search):
        i = state.row_of[search.column]
        known = search.known | (numbers == search.column)
        reduced = costs[i] - state.prices
        through = search.reached + (reduced - reduced[search.column])
        is_shorter = ~known & (through < search.distance)
        distance = jnp.where(is_shorter, through, search.distance)
        before = jnp.where(is_shorter, i, search.before)
        chosen = nearest(jnp.where(known, jnp.inf, distance))
        return _Search(distance, known, before, *chosen)

    distance = costs[row] - state.prices
    known = jnp.zeros(columns, bool)
    before = jnp.full(columns, row)
    start = _Search(distance, known, before, *nearest(distance))
    return lax.while_loop(is_going_on, step, start)


def _flip(before, state, row, end):
    """Gives each row on the path to the column `end` the next column on the path."""

    def step(carry):
        column, row_of, column_of, _ = carry
        i = before[column]
        after = column_of[i]
        return after, row_of.at[column].set(i), column_of.at[i].set(column), i == row

    start = end, state.row_of, state.column_of, end < 0
    _, row_of, column_of, _ = lax.while_loop(lambda carry: ~carry[3], step, start)
    return _Assignment(state.prices, row_of, column_of)
