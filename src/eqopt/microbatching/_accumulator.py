"""How the values of the microbatches are combined: what there is to choose from."""

import enum
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._construction import Module


class AccumulationType(enum.Enum):
    """The built-in ways to combine what a function returns for each microbatch.

    Sums and means of 16-bit floats are kept in float32 and rounded once, at the end.
    """

    SUM = enum.auto()
    """The sum."""

    MEAN = enum.auto()
    """The mean, each microbatch weighted by its number of rows. Its divisor counts all
    microbatches, also those that `num_real_microbatches` leaves out (as zeros)."""

    RUNNING_MEAN = enum.auto()
    """The mean over the microbatches that have been evaluated: the same as `MEAN`,
    unless `num_real_microbatches` leaves some out."""

    CONCAT = enum.auto()
    """The concatenation along axis 0, in the order of the rows of the batch. Scalars
    are stacked, one per microbatch. What `num_real_microbatches` leaves out is zero."""


class Accumulator(Module):
    """A custom way to combine what a function returns for each microbatch.

    It stands for the program

    ```python
    carry = init(jax.eval_shape(lambda: value_0))
    for i in range(num_microbatches):
        carry = update(carry, value_i, i)
    return finalize(carry)
    ```

    where a value is that part of the function's output at which the accumulator stands,
    an array or a whole subtree. Any leaf of it that is not an array is `None`. If the
    microbatch size does not divide the batch size then the last value comes from fewer
    rows.

    !!! example

        ```python
        largest = Accumulator(
            init=lambda like: jnp.full(like.shape, -jnp.inf, like.dtype),
            update=lambda carry, value, index: jnp.maximum(carry, value),
            finalize=lambda carry: carry,
            aggregate=lambda values: jnp.max(values, axis=0),
        )
        ```

    **Arguments:**

    - `init`: a function `like -> carry`, where `like` is a value with a
        `jax.ShapeDtypeStruct` for every array.
    - `update`: a function `(carry, value, index) -> carry`. It may not change the
        shapes and dtypes of the carry. `index` is an int32 scalar.
    - `finalize`: a function `carry -> result`.
    - `aggregate`: a function `values -> value`, combining the rows of one microbatch,
        which lie along axis 0. Only `micro_vmap` and `micro_grad` use it.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


def is_accumulator(x: Any) -> bool:
    return isinstance(x, Accumulator | AccumulationType)


def check_accumulator(accumulator: PyTree, name: str = "accumulator") -> None:
    for path, leaf in jtu.tree_leaves_with_path(accumulator, is_leaf=is_accumulator):
        if not is_accumulator(leaf):
            raise ValueError(
                f"`{name}{jtu.keystr(path)}` must be an `AccumulationType` or an "
                f"`Accumulator`, got {leaf!r}."
            )
