"""Assigns rows one by one along shortest augmenting paths.

Columns have prices $v$: 0 at first, and never raised. Each assigned row has a column
with minimal reduced cost $C_{ij} - v_j$. A new row may take a column from another row,
which takes one from the next, and so on until a column is free. Of all such paths, the
path with the smallest increase in cost is used. Then the prices are updated from the
known distances, so that this property holds again.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32


class Assignment(NamedTuple):
    """The prices of columns, and the row of each column, -1 for none."""

    prices: Float[Array, " columns"]
    row_of: Int32[Array, " columns"]
    column_of: Int32[Array, " rows"]


class Search(NamedTuple):
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


def assign_rest(costs: Float[Array, "rows columns"], state: Assignment) -> Assignment:
    """Assigns all rows without a column, if this has a finite cost."""
    rows = jnp.argsort(state.column_of >= 0).astype(jnp.int32)
    count = jnp.sum(state.column_of < 0)
    return lax.fori_loop(0, count, lambda i, s: _augment(costs, s, rows[i]), state)


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
        return Search(distance, known, before, *chosen)

    distance = costs[row] - state.prices
    known = jnp.zeros(columns, bool)
    before = jnp.full(columns, row)
    start = Search(distance, known, before, *nearest(distance))
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
    return Assignment(state.prices, row_of, column_of)
