"""The weights of rows and microbatches."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._jax_internals import is_traced
from ._rows import Split, check_shards, take_rows


class Part(eqx.Module):
    """The weights and sizes of one microbatch, for accumulating its value."""

    index: Any
    is_rest: bool  # whether it is the last, smaller one
    weight: int | Array  # the weight of its value in a mean
    row_weights: Array | None  # the weight of each row; `None` if all are equal


class AbstractWeights(eqx.Module):
    """The factor of a value in a mean, and the divisor of their sum."""

    split: eqx.AbstractVar[Split]
    has_rows: eqx.AbstractVar[bool]  # whether the output has one entry per row

    @abc.abstractmethod
    def part(self, index: Any, is_rest: bool) -> Part:
        """The microbatch `index`."""

    @abc.abstractmethod
    def of_all(self) -> float | Array:
        """The weight of all microbatches together."""

    @abc.abstractmethod
    def of_first(self, executed: int | Array) -> float | Array:
        """The weight of the first microbatches together."""


class _Equal(AbstractWeights):
    """All rows have the same weight: microbatches are weighted by their row counts."""

    split: Split
    has_rows: bool

    def part(self, index: Any, is_rest: bool) -> Part:
        split = self.split
        # Aggregated rows are already a sum.
        is_one = self.has_rows or self._unit > 1
        weight = 1 if is_one else (split.size, split.rest)[is_rest]
        return Part(index, is_rest, weight, None)

    def of_all(self) -> float:
        return self.split.rows / self._unit

    def of_first(self, executed: int | Array) -> float | Array:
        size, rows = self.split.size, self.split.rows
        if isinstance(executed, int):
            return max(1, min(executed * size, rows)) / self._unit
        return jnp.clip(executed * size, 1, max(1, rows)) / self._unit

    @property
    def _unit(self) -> int:
        # Full microbatches are counted in units of one if there are no others.
        is_equal = self.split.rest == 0 and not self.has_rows
        return self.split.size if is_equal else 1


class _Given(AbstractWeights):
    """Every row has its own weight: microbatches are weighted by the sum."""

    rows: Float[Array, " rows"]
    microbatches: Float[Array, " microbatches"]
    split: Split
    has_rows: bool

    def part(self, index: Any, is_rest: bool) -> Part:
        if self.has_rows:
            rows = take_rows(self.rows, 0, self.split, None if is_rest else index)
            return Part(index, is_rest, 1, rows)
        return Part(index, is_rest, self.microbatches[index], None)

    def of_all(self) -> Array:
        return _divisor(jnp.sum(self.microbatches))

    def of_first(self, executed: int | Array) -> Array:
        index = np.arange(self.split.total, dtype=np.int32)
        return _divisor(jnp.sum(jnp.where(index < executed, self.microbatches, 0)))


def _divisor(total: Array) -> Array:
    # If all weights are zero, the sum is zero, and so is the mean.
    return jnp.where(total == 0, 1, total)


def make_weights(weights: Any, split: Split, has_rows: bool) -> AbstractWeights:
    """The weights of microbatches, from the user's weights of rows, if any.

    `has_rows`: whether the function's output has one entry per row.
    """
    if weights is None:
        return _Equal(split=split, has_rows=has_rows)
    rows = _check(weights, split)
    filled = rows[: split.count * split.size] if split.rest else rows
    microbatches = jnp.sum(jnp.reshape(filled, (split.size, split.count)), axis=0)
    if split.rest:
        last = jnp.sum(rows[-split.rest :], keepdims=True)
        microbatches = jnp.concatenate([microbatches, last])
    return _Given(rows=rows, microbatches=microbatches, split=split, has_rows=has_rows)


def _check(weights: Any, split: Split) -> Float[Array, " rows"]:
    if np.shape(weights) != (split.rows,):
        raise ValueError(
            f"`weights` has shape {np.shape(weights)}, but the batch has {split.rows} "
            f"rows. Expected one weight for each: shape ({split.rows},)."
        )
    dtype = jnp.result_type(weights)
    if jnp.issubdtype(dtype, jnp.complexfloating) or not (
        jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_
    ):
        raise ValueError(
            f"`weights` has dtype {dtype}. Expected real numbers, integers or bools."
        )
    is_known = not is_traced(weights)
    if is_known and getattr(weights, "is_fully_addressable", True):
        lowest = np.min(np.asarray(weights, np.float32), initial=0)
        if lowest < 0:
            raise ValueError(
                f"`weights` must not be negative, but the lowest is {lowest}. To "
                "ignore a row, use weight 0."
            )
    check_shards("weights", weights, 0, split)
    return jnp.asarray(weights, dtype if dtype == jnp.float64 else jnp.float32)


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
