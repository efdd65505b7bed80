"""How the values of the microbatches are combined: the options."""

import enum
from collections.abc import Callable
from typing import Any, TypeAlias

from .._arguments.construction import Module
from .._types import PyTree


class AccumulationType(enum.Enum):
    """The built-in ways to combine what a function returns for each microbatch.

    Sums and means of 16-bit floats are kept in float32 and rounded once, at the end.

    For an empty batch, the function is traced for the shapes and dtypes of its output,
    but never run. Then `SUM` and `RUNNING_MEAN` are zero, `CONCAT` is empty, and `MEAN`
    is NaN without weights and zero with weights.
    """

    SUM = enum.auto()
    """The sum."""

    MEAN = enum.auto()
    """The mean, with each microbatch weighted by its number of rows. The divisor counts
    all microbatches, including those that `num_real_microbatches` omits (as zeros).
    """

    RUNNING_MEAN = enum.auto()
    """The mean over the evaluated microbatches: the same as `MEAN`, unless
    `num_real_microbatches` omits some.
    """

    CONCAT = enum.auto()
    """The concatenation along axis 0, in the order of the rows of the batch. Scalars
    are stacked, one per microbatch. Microbatches that `num_real_microbatches` omits are
    zero.
    """


class Accumulator(Module):
    """A custom way to combine what a function returns for each microbatch.

    It represents the program

    ```python
    carry = init(jax.eval_shape(lambda: value_0))
    for i in range(num_microbatches):
        carry = update(carry, value_i, i)
    return finalize(carry)
    ```

    where a value is the part of the function's output at the position of the
    accumulator, an array or a whole subtree. Leaves that are not arrays are `None`. If
    the microbatch size does not divide the batch size, the last value comes from fewer
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
    - `update`: a function `(carry, value, index) -> carry`. It must not change the
        shapes and dtypes of the carry. `index` is an int32 scalar.
    - `finalize`: a function `carry -> result`.
    - `aggregate`: a function `values -> value` that combines the rows of one
        microbatch, which are along axis 0. Only `micro_vmap` and `micro_grad` use it.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


# One of them, or a tree of them that is a prefix of the output.
Accumulators: TypeAlias = PyTree[AccumulationType | Accumulator]


def is_accumulator(x: Any) -> bool:
    return isinstance(x, Accumulator | AccumulationType)
