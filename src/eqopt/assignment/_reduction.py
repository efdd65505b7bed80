"""A quick start: most rows can have one of their cheapest columns."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ._augmentation import Assignment


def reduce_and_assign(
    costs: Float[Array, "rows columns"], state: Assignment
) -> Assignment:
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
    return Assignment(prices, row_of, column_of)
