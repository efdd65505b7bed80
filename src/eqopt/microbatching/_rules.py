"""How the values of the microbatches are combined: the rules."""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._types import PyTree
from ._accumulator import Accumulator
from ._rows import Split
from ._weights import Part, weigh, weighted_sum


class AbstractRule(eqx.Module):
    """An accumulator that has seen its part of the output."""

    @abc.abstractmethod
    def aggregate(self, values: Any, part: Part) -> Any:
        """Combines the rows of the microbatch `part`, which are along axis 0."""

    @abc.abstractmethod
    def init(self, like: Any) -> Any:
        """The carry before the first microbatch."""

    @abc.abstractmethod
    def update(self, carry: Any, value: Any, part: Part) -> Any:
        """The carry after the microbatch `part`."""

    @abc.abstractmethod
    def finalize(self, carry: Any) -> Any:
        """The result."""


class Keep(AbstractRule):
    """For a leaf that is not an array, which is the same for all microbatches."""

    value: Any

    def aggregate(self, values: None, part: Part) -> None:
        return None

    def init(self, like: None) -> None:
        return None

    def update(self, carry: None, value: None, part: Part) -> None:
        return None

    def finalize(self, carry: None) -> Any:
        return self.value


class Custom(AbstractRule):
    """For anything at the position of an `Accumulator`."""

    accumulator: Accumulator

    def aggregate(self, values: Any, part: Part) -> Any:
        return self.accumulator.aggregate(values)

    def init(self, like: Any) -> Any:
        return self.accumulator.init(like)

    def update(self, carry: Any, value: Any, part: Part) -> Any:
        return self.accumulator.update(carry, value, part.index)

    def finalize(self, carry: Any) -> Any:
        return self.accumulator.finalize(carry)


class Thread(AbstractRule):
    """For the State: each microbatch gets the one from the previous microbatch."""

    initial: Any

    def aggregate(self, values: Any, part: Part) -> Any:
        return values

    def init(self, like: Any) -> Any:
        return self.initial

    def update(self, carry: Any, value: Any, part: Part) -> Any:
        return value

    def finalize(self, carry: Any) -> Any:
        return carry


class Total(AbstractRule):
    """Sum and means of one array: a mean is a weighted sum, divided once at the end."""

    dtype: Any
    divisor: float | Array | None  # `None` for a sum
    is_product: bool  # whether the rows are a matrix product

    def aggregate(self, values: Array, part: Part) -> Array:
        weights = part.row_weights
        is_sum = self.divisor is None and weights is None
        if not (is_sum or self._inexact):
            values = values.astype(jnp.result_type(float))
        values = values.astype(_wide(values.dtype))
        if weights is None and (self.is_product or not self._inexact):
            return jnp.sum(values, axis=0)
        return weighted_sum(values, weights)

    def init(self, like: Any) -> Array:
        return jnp.zeros_like(like, dtype=_wide(like.dtype))

    def update(self, carry: Array, value: Array, part: Part) -> Array:
        value = value.astype(carry.dtype)
        weight = 1 if self.divisor is None else part.weight
        if isinstance(weight, int):
            return carry + (value if weight == 1 else value * weight)
        return carry + weigh(value, weight)

    def finalize(self, carry: Array) -> Array:
        if self.divisor is not None:
            carry = carry / jnp.asarray(self.divisor, carry.dtype)
        # Rows of integers already have the dtype that `jnp.sum` or `jnp.mean` gives
        # them.
        return carry.astype(self.dtype) if self._inexact else carry

    @property
    def _inexact(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))


class Concat(AbstractRule):
    """The concatenation of one array."""

    split: Split
    rest: Any  # shape and dtype of the value of the smaller, last microbatch

    def aggregate(self, values: Array, part: Part) -> Array:
        return values

    def init(self, like: Any) -> tuple[Array, Array | None]:
        # A microbatch is a column, as it is in the batch (`_rows.py`): merging the
        # first two axes then gives the original order without moving any data.
        axis = min(1, len(like.shape))
        shape = (*like.shape[:axis], self.split.count, *like.shape[axis:])
        columns = jnp.expand_dims(jnp.zeros_like(like), axis)
        last = jnp.zeros_like(self.rest) if self.split.rest else None
        return jnp.broadcast_to(columns, shape), last

    def update(
        self, carry: tuple[Array, Array | None], value: Array, part: Part
    ) -> tuple[Array, Array | None]:
        columns, last = carry
        if part.is_rest:
            return columns, value
        axis = min(1, value.ndim)
        return lax.dynamic_update_index_in_dim(columns, value, part.index, axis), last

    def finalize(self, carry: tuple[Array, Array | None]) -> Array:
        columns, last = carry
        rows = lax.collapse(columns, 0, min(2, columns.ndim))
        return rows if last is None else jnp.concatenate([rows, jnp.atleast_1d(last)])


def _wide(dtype: Any) -> Any:
    small = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if small else dtype


def state_leaves(rules: PyTree, initial: Sequence[Any], carry: Any) -> Sequence[Any]:
    """The leaves of the State for the next microbatch, in a tree of carries.

    `initial`: the leaves of the first State, which stay if the output has no State.
    """
    rules, treedef = jtu.tree_flatten(rules, is_leaf=_is_rule)
    for rule, value in zip(rules, treedef.flatten_up_to(carry), strict=True):
        if isinstance(rule, Thread):
            return jtu.tree_leaves(value)
    return initial


def each(rules: PyTree, method: str, *trees: Any, **kwargs: Any) -> Any:
    """Calls a method of every rule with the values at its position in `trees`."""
    return jtu.tree_map(
        lambda rule, *values: getattr(rule, method)(*values, **kwargs),
        rules,
        *trees,
        is_leaf=_is_rule,
    )


def _is_rule(x: Any) -> bool:
    return isinstance(x, AbstractRule)
