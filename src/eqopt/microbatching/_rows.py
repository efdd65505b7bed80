"""The rows of an array, and how microbatches divide them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._arguments.checks import check_integer
from .._errors import InputError, naming
from .._trees.sharding import is_in_shard_map
from .._types import IntegerLike, PyTree, StaticInteger


def reshape_batch_axis(
    tree: PyTree, microbatch_size: StaticInteger, axis: int = 0
) -> PyTree:
    """Splits the batch axis of every array into `(num_microbatches, microbatch_size)`.

    Microbatch `i` of `n` holds the rows `i, i + n, i + 2n, ...`. An array that is
    sharded over its batch axis is then sharded over `microbatch_size`: every device
    keeps its rows, and has its share of every microbatch.

    !!! example

        ```python
        reshape_batch_axis(jnp.arange(6), 2)  # [[0, 3], [1, 4], [2, 5]]
        ```

    **Arguments:**

    - `tree`: any pytree. Leaves that are not arrays stay unchanged.
    - `microbatch_size`: the number of rows per microbatch. It must divide the batch
        axis of every array.
    - `axis`: the batch axis. It may be negative.

    **Returns:**

    `tree` with each array of shape `(..., batch, ...)` replaced by an array of shape
    `(..., num_microbatches, microbatch_size, ...)` and the same dtype.

    **Raises:**

    `ValueError` if `axis` is out of range for an array, or if `microbatch_size` is not
    positive or does not divide a batch axis.
    """
    owner = "reshape_batch_axis"
    size = check_integer(owner, "microbatch_size", microbatch_size, 1)

    def reshape(path: Any, x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        where = f"tree{jtu.keystr(path)}"
        i = resolve_axis(where, x, axis)
        split = Split(x.shape[i], size)
        if split.rest != 0:
            raise InputError(
                owner,
                f"`microbatch_size={size}` does not divide the {split.rows} rows of "
                f"`{where}`. Pad the batch.",
            )
        check_shards(where, x, i, split)
        return jnp.swapaxes(_columns(x, i, split), i, i + 1)

    with naming(owner):
        return jtu.tree_map_with_path(reshape, tree)


class Split(eqx.Module):
    """`rows` rows divided into `count` microbatches of `size` rows, and one of `rest`."""

    rows: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        return self.rows // self.size

    @property
    def rest(self) -> int:
        return self.rows % self.size

    @property
    def total(self) -> int:
        return self.count + (self.rest > 0)

    def executed(self, num_real: IntegerLike | None) -> int | Array:
        """The number of microbatches to evaluate; checks `num_real_microbatches`."""
        if num_real is None:
            return self.total
        if not isinstance(num_real, int):
            return jnp.clip(jnp.asarray(num_real).astype(jnp.int32), 0, self.total)
        if not 0 <= num_real <= self.total:
            raise InputError(
                None,
                f"`num_real_microbatches` must be at most {self.total}, the number of "
                f"microbatches, but is {num_real}.",
            )
        return num_real


def take_rows(x: Any, axis: int, split: Split, index: Any) -> Any:
    """The rows of `x` in the microbatch `index`; `None` means the last, smaller one."""
    if index is None:
        start = split.rows - split.rest
        return lax.slice_in_dim(jnp.asarray(x), start, split.rows, axis=axis)
    if split.count == 0:
        # An empty batch: the function is traced for its output's shapes, but never run.
        shape = (*x.shape[:axis], split.size, *x.shape[axis + 1 :])
        return jnp.empty_like(x, shape=shape)
    if split.rest == 0:
        columns = _columns(x, axis, split)
        return lax.dynamic_index_in_dim(columns, index, axis + 1, keepdims=False)
    # The full microbatches end before the batch. Slicing off the remaining rows to
    # reshape would copy nearly the whole batch; gathering one microbatch does not.
    rows = index + split.count * jnp.arange(split.size, dtype=jnp.int32)
    return jnp.take(
        x, rows, axis, mode="clip", unique_indices=True, indices_are_sorted=True
    )


def _columns(x: Any, axis: int, split: Split) -> Any:
    # Row-major to (size, count), so that a microbatch is a *column*. It has the same
    # rows as a row of a column-major (count, size), but no data moves, and the sharding
    # stays.
    shape = (*x.shape[:axis], split.size, split.count, *x.shape[axis + 1 :])
    return jnp.reshape(x, shape)


def resolve_axis(where: str, x: Any, axis: int) -> int:
    """The axis counted from the front; `where` names the array in an error."""
    if not -x.ndim <= axis < x.ndim:
        raise InputError(
            None,
            f"`{where}` of shape {x.shape} has no axis {axis}. If it is no batch, pass "
            "it in another argument.",
        )
    return axis % x.ndim


def check_shards(where: str, x: Any, axis: int, split: Split) -> None:
    """Raises unless each device has an equal share of every microbatch."""
    # On an automatic mesh, the type of an array has no sharding: XLA moves data if
    # necessary. Inside `jax.shard_map`, each device has its own rows.
    if is_in_shard_map() or split.rows == 0:
        return
    local = jax.typeof(x).sharding.shard_shape(x.shape)[axis]
    shards = x.shape[axis] // local
    if shards > 1 and (split.rest or split.size % shards):
        raise InputError(
            None,
            f"`{where}` has its {split.rows} rows explicitly sharded {shards} ways, so "
            f"`microbatch_size={split.size}` must divide {split.rows} and be a "
            f"multiple of {shards}.",
        )
