"""The weights of rows and microbatches."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._errors import InputError
from ._rows import Split, check_shards, take_rows


class Part(eqx.Module):
    """The weights and sizes of one microbatch, for accumulating its value."""

    index: Any
    is_rest: bool  # whether it is the last, smaller one
    weight: int | Array  # the weight of its value in a mean
    row_weights: Array | None  # the weight of each row; `None` if all are equal


class Weights(eqx.Module):
    """The weight of each value in a mean, and the sums of these weights.

    **Attributes:**

    - `split`: how the rows are divided into microbatches.
    - `has_rows`: whether a value has one entry per row, which is weighted by `Part`.
    - `rows`, `microbatches`: the weight of each; `None` if all rows have the same one.
    """

    split: Split
    has_rows: bool
    rows: Float[Array, " rows"] | None
    microbatches: Float[Array, " microbatches"] | None

    def part(self, index: Any, is_rest: bool) -> Part:
        """The microbatch `index`."""
        split = self.split
        if self.rows is None or self.microbatches is None:
            is_one = self.has_rows or self._rows_per_unit > 1
            weight = 1 if is_one else (split.size, split.rest)[is_rest]
            return Part(index, is_rest, weight, None)
        if self.has_rows:
            rows = take_rows(self.rows, 0, split, None if is_rest else index)
            return Part(index, is_rest, 1, rows)
        return Part(index, is_rest, self.microbatches[index], None)

    def of_all(self) -> float | Array:
        """The weight of all microbatches together."""
        if self.microbatches is None:
            return self.split.rows / self._rows_per_unit
        return _divisor(jnp.sum(self.microbatches))

    def of_first(self, executed: int | Array) -> float | Array:
        """The weight of the first microbatches together."""
        if self.microbatches is not None:
            index = np.arange(self.split.total, dtype=np.int32)
            return _divisor(jnp.sum(jnp.where(index < executed, self.microbatches, 0)))
        size, rows = self.split.size, self.split.rows
        if isinstance(executed, int):
            return max(1, min(executed * size, rows)) / self._rows_per_unit
        return jnp.clip(executed * size, 1, max(1, rows)) / self._rows_per_unit

    @property
    def _rows_per_unit(self) -> int:
        # If all microbatches are equal, each of them counts as one.
        return 1 if self.has_rows or self.split.rest else self.split.size


def _divisor(total: Array) -> Array:
    # If all weights are zero, the sum is zero, and so is the mean.
    return jnp.where(total == 0, 1, total)


def make_weights(weights: Any, split: Split, has_rows: bool) -> Weights:
    """The weights of microbatches, from the user's weights of rows, if any."""
    if weights is None:
        return Weights(split, has_rows, None, None)
    _check_weights(weights, split)
    is_double = jnp.result_type(weights) == jnp.float64
    rows = jnp.asarray(weights, jnp.float64 if is_double else jnp.float32)
    filled = rows[: split.count * split.size] if split.rest else rows
    microbatches = jnp.sum(jnp.reshape(filled, (split.size, split.count)), axis=0)
    if split.rest:
        last = jnp.sum(rows[-split.rest :], keepdims=True)
        microbatches = jnp.concatenate([microbatches, last])
    return Weights(split, has_rows, rows, microbatches)


def _check_weights(weights: Any, split: Split) -> None:
    """Raises unless each row has one real number."""
    if np.shape(weights) != (split.rows,) or jnp.iscomplexobj(weights):
        raise InputError(
            None,
            f"`weights` must be real numbers of shape ({split.rows},), one for each row "
            f"of the batch, but is {eqx.tree_pformat(weights)}.",
        )
    check_shards("weights", weights, 0, split)


def weigh(value: Array, weight: Array) -> Array:
    """`weight * value`, and zero if the weight is zero, even if the value is NaN."""
    return jnp.where(weight == 0, 0, value * weight.astype(value.dtype))


def weighted_sum(values: Array, weights: Array | None) -> Array:
    """The sum of `weights[i] * values[i]`, without values whose weight is zero."""
    if weights is None:
        weights = jnp.ones(values.shape[:1])
    else:
        rows = jnp.expand_dims(weights, range(1, values.ndim))
        values = jnp.where(rows == 0, 0, values)
    weights = weights.astype(values.dtype)
    if jax.typeof(values).sharding.spec[:1] not in ((), (None,)):
        # Explicitly sharded rows: for a product, JAX would require the sharding of the
        # result.
        return jnp.sum(values * jnp.expand_dims(weights, range(1, values.ndim)), 0)
    # Not written as a sum: XLA on a CPU fuses a sum with the computation of the values,
    # and in a loop, the result was a hundred times slower. For accelerators, XLA compiles
    # both to the same program.
    return jnp.tensordot(weights, values, 1, precision=lax.Precision.HIGHEST)
