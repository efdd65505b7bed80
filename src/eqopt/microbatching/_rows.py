"""The rows of a batch: which arrays have them, and how microbatches divide them."""

import operator
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._jax_internals import varying_axes
from .._trees.control import vary
from .._trees.sharding import is_in_shard_map
from .._types import PyTree, StaticInteger


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
    size = check_size(microbatch_size)
    return jtu.tree_map_with_path(
        lambda path, x: _reshape(f"tree{jtu.keystr(path)}", x, size, axis),
        tree,
    )


def _reshape(where: str, x: Any, size: int, axis: int) -> Any:
    if not eqx.is_array(x):
        return x
    axis = _resolve_axis(where, x, axis, "axis")
    split = Split(x.shape[axis], size)
    if split.rest != 0:
        raise ValueError(
            f"`microbatch_size={size}` does not divide the {split.rows} rows of "
            f"`{where}` (axis {axis} of shape {x.shape}), so they do not fit into one "
            "array. Choose a divisor, pad the batch, or use `microbatch`, which "
            "accepts such a batch."
        )
    check_shards(where, x, axis, split)
    return jnp.swapaxes(_columns(x, axis, split), axis, axis + 1)


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

    def executed(self, num_real: Any) -> int | Array:
        """The number of microbatches to evaluate; checks `num_real_microbatches`."""
        if num_real is None:
            return self.total
        if isinstance(num_real, int):
            if not 0 <= num_real <= self.total:
                raise ValueError(
                    f"`num_real_microbatches={num_real}` is out of range: {self.rows} "
                    f"rows in microbatches of {self.size} are {self.total} "
                    "microbatches."
                )
            return num_real
        num_real = jnp.asarray(num_real)
        if num_real.shape != () or not jnp.issubdtype(num_real.dtype, jnp.integer):
            raise ValueError(
                "`num_real_microbatches` must be an int or an integer scalar, got an "
                f"array of shape {num_real.shape} and dtype {num_real.dtype}."
            )
        return jnp.clip(num_real.astype(jnp.int32), 0, self.total)


class Batch(eqx.Module):
    """The leaves of `(args, kwargs)`, with access to any microbatch."""

    leaves: list[Any]
    axes: tuple[int | None, ...]  # of each leaf; `None` if all rows share it
    treedef: Any
    split: Split

    def full(self, index: Any) -> list[Any]:
        """The leaves for the microbatch `index < split.count`."""
        return self._take(index)

    def last(self) -> list[Any]:
        """The leaves for the last `split.rest` rows, the smaller microbatch."""
        return self._take(None)

    def _take(self, index: Any) -> list[Any]:
        pairs = zip(self.leaves, self.axes, strict=True)
        return [
            x if a is None else take_rows(x, a, self.split, index) for x, a in pairs
        ]


def take_rows(x: Any, axis: int, split: Split, index: Any) -> Any:
    """The rows of `x` in the microbatch `index`; `None` means the last, smaller one."""
    return _last(x, axis, split) if index is None else _full(x, axis, split, index)


def _columns(x: Any, axis: int, split: Split) -> Any:
    # Row-major to (size, count), so that a microbatch is a *column*. It has the same
    # rows as a row of a column-major (count, size), but no data moves, and the sharding
    # stays.
    shape = (*x.shape[:axis], split.size, split.count, *x.shape[axis + 1 :])
    return jnp.reshape(x, shape)


def _full(x: Any, axis: int, split: Split, index: Any) -> Any:
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


def _last(x: Any, axis: int, split: Split) -> Any:
    start = split.rows - split.rest
    return lax.slice_in_dim(jnp.asarray(x), start, split.rows, axis=axis)


def find_batch(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch_axes: Mapping[int | str, int | None],
    size: int | None,
) -> Batch:
    """Finds the arrays with a batch axis, and checks that they have equal sizes.

    **Arguments:**

    - `args`, `kwargs`: the arguments of a call.
    - `batch_axes`: the batch axis of each argument that has one, by its index in `args`
        or its name in `kwargs`.
    - `size`: the number of rows per microbatch; `None` for all of them.
    """
    with_path, treedef = jtu.tree_flatten_with_path((args, kwargs))
    axes: list[int | None] = []
    found: dict[str, tuple[Any, int]] = {}
    for (which, key, *rest), x in with_path:
        axis = batch_axes.get(key.key if which.idx else key.idx)
        if axis is None or not eqx.is_array(x):
            axes.append(None)
            continue
        where = f"{'kwargs' if which.idx else 'args'}{jtu.keystr((key, *rest))}"
        axis = _resolve_axis(where, x, axis, "in_axes")
        axes.append(axis)
        found[where] = x, axis
    lengths = {where: x.shape[axis] for where, (x, axis) in found.items()}
    rows = _common_length(lengths, args, kwargs, batch_axes)
    size = max(rows, 1) if size is None else size
    if 0 < rows < size:
        raise ValueError(
            f"`microbatch_size={size}` is larger than the batch, which has {rows} rows "
            f"(`{next(iter(lengths))}`). Use at most {rows}, or `None` for one "
            "microbatch of the whole batch."
        )
    split = Split(rows, size)
    for where, (x, axis) in found.items():
        check_shards(where, x, axis, split)
    return Batch([x for _, x in with_path], tuple(axes), treedef, split)


def _resolve_axis(where: str, x: Any, axis: int, name: str) -> int:
    if not -x.ndim <= axis < x.ndim:
        fix = (
            "An array without a batch axis is not part of a batch. Pass it in another "
            "argument."
            if x.ndim == 0
            else f"Expected an axis from {-x.ndim} to {x.ndim - 1}."
        )
        raise ValueError(
            f"`{name}={axis}` is out of range for `{where}` of shape {x.shape}. {fix}"
        )
    return axis % x.ndim


def check_shards(where: str, x: Any, axis: int, split: Split) -> None:
    # On an automatic mesh, the type of an array has no sharding: XLA moves data if
    # necessary. Inside `jax.shard_map`, each device has its own rows.
    if is_in_shard_map() or split.rows == 0:
        return
    local = jax.typeof(x).sharding.shard_shape(x.shape)[axis]
    shards = x.shape[axis] // local
    if shards > 1 and (split.rest or split.size % shards):
        raise ValueError(
            f"`{where}` has its {split.rows} rows explicitly sharded {shards} ways, so "
            f"`microbatch_size={split.size}` must divide {split.rows} and be a "
            f"multiple of {shards}."
        )


def own_on_each_device(tree: PyTree, batch: PyTree) -> PyTree:
    """`tree`, whose arrays vary between devices wherever the batch does.

    Inside `jax.shard_map`, JAX would add up the gradients of all devices with respect to
    an array that does not, and mix different examples.
    """
    if not is_in_shard_map():
        return tree
    arrays = filter(eqx.is_array, jtu.tree_leaves(batch))
    axes = varying_axes(*map(jax.typeof, arrays))
    return jtu.tree_map(lambda x: vary(x, axes) if eqx.is_inexact_array(x) else x, tree)


def _common_length(
    lengths: dict[str, int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch_axes: Mapping[int | str, int | None],
) -> int:
    if not lengths:
        found = ", ".join(
            f"`{'args' if isinstance(place, int) else 'kwargs'}[{place!r}]` with leaves "
            f"of type {sorted({type(x).__name__ for x in jtu.tree_leaves(tree)})}"
            for place, tree in (dict(enumerate(args)) | kwargs).items()
            if batch_axes.get(place) is not None
        )
        raise ValueError(
            "No array with a batch axis: at least one argument must contain one. "
            f"Found {found or 'no batch argument'}. Pass the arguments that are "
            "batches, and convert Python numbers and lists of numbers to arrays with "
            "`jnp.asarray`."
        )
    first, rows = next(iter(lengths.items()))
    for where, length in lengths.items():
        if length != rows:
            raise ValueError(
                f"Batch axes must have the same size, but `{first}` has {rows} rows "
                f"and `{where}` has {length}. Is `in_axes` correct for both, and are "
                "both part of the batch?"
            )
    return rows


def check_size(microbatch_size: StaticInteger | None) -> Any:
    """The size as a Python integer, or `None`; raises unless it is positive."""
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(
            f"`microbatch_size` must be a positive int, got {microbatch_size}."
        )
    return None if microbatch_size is None else operator.index(microbatch_size)
