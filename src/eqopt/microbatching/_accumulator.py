"""How values of microbatches are combined: the options, and a rule for each array."""

import abc
import enum
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arguments.construction import Module
from .._errors import InputError
from .._types import PyTree
from ._batch import Split, check_shards, is_state, take_rows
from ._ghost.factors import Summand


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


#
# The weights of rows and microbatches
#


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
        expected = f"real numbers of shape ({split.rows},), one for each row"
        found = eqx.tree_pformat(weights)
        raise InputError(f"`weights` must be {expected}, but is {found}.")
    check_shards("weights", weights, 0, split)


def _weigh(value: Array, weight: Array) -> Array:
    """`weight * value`, and zero if the weight is zero, even if the value is NaN."""
    return jnp.where(weight == 0, 0, value * weight.astype(value.dtype))


def _weighted_sum(values: Array, weights: Array | None) -> Array:
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


#
# A rule for each array
#


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


class Total(AbstractRule):
    """Sum and means of one array, or of a `Summand` of each example.

    A mean is a weighted sum, divided once at the end.
    """

    dtype: Any
    divisor: float | Array | None  # `None` for a sum
    is_product: bool  # whether the rows are a matrix product

    def aggregate(self, values: Array | Summand, part: Part) -> Array:
        weights = part.row_weights
        if isinstance(values, Summand):
            return values.sum(weights)
        is_sum = self.divisor is None and weights is None
        if not (is_sum or self._inexact):
            values = values.astype(jnp.result_type(float))
        values = values.astype(_wide(values.dtype))
        if weights is None and (self.is_product or not self._inexact):
            return jnp.sum(values, axis=0)
        return _weighted_sum(values, weights)

    def init(self, like: Any) -> Array:
        return jnp.zeros_like(like, dtype=_wide(like.dtype))

    def update(self, carry: Array, value: Array, part: Part) -> Array:
        value = value.astype(carry.dtype)
        weight = 1 if self.divisor is None else part.weight
        if isinstance(weight, int):
            return carry + (value if weight == 1 else value * weight)
        return carry + _weigh(value, weight)

    def finalize(self, carry: Array) -> Array:
        if self.divisor is not None:
            carry = carry / jnp.asarray(self.divisor, carry.dtype)
        # Rows of integers already have the dtype that `jnp.sum` or `jnp.mean` gives
        # them.
        return carry.astype(self.dtype) if self._inexact else carry

    @property
    def _inexact(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))


def _wide(dtype: Any) -> Any:
    small = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if small else dtype


class Concat(AbstractRule):
    """The concatenation of one array."""

    split: Split
    rest: Any  # shape and dtype of the value of the smaller, last microbatch

    def aggregate(self, values: Array, part: Part) -> Array:
        return values

    def init(self, like: Any) -> tuple[Array, Array | None]:
        # A microbatch is a column, as it is in the batch (`_batch.py`): merging the
        # first two axes then gives the original order without moving any data.
        axis = min(1, len(like.shape))
        shape = (*like.shape[:axis], self.split.count, *like.shape[axis:])
        columns = jnp.expand_dims(jnp.zeros_like(like), axis)
        last = jnp.zeros_like(self.rest) if self.split.rest else None
        return jnp.broadcast_to(columns, shape), last

    def update(self, carry, value, part):
        columns, last = carry
        if part.is_rest:
            return columns, value
        axis = min(1, value.ndim)
        return lax.dynamic_update_index_in_dim(columns, value, part.index, axis), last

    def finalize(self, carry: tuple[Array, Array | None]) -> Array:
        columns, last = carry
        rows = lax.collapse(columns, 0, min(2, columns.ndim))
        return rows if last is None else jnp.concatenate([rows, jnp.atleast_1d(last)])


def each(rules: PyTree, method: str, *trees: Any, **kwargs: Any) -> Any:
    """Calls a method of every rule with the values at its position in `trees`.

    Where there is no rule, the result is `None`.
    """

    def call(rule: AbstractRule | None, *values: Any) -> Any:
        return None if rule is None else getattr(rule, method)(*values, **kwargs)

    return jtu.tree_map(call, rules, *trees, is_leaf=_is_rule)


def fill(rules: PyTree, results: PyTree, others: PyTree) -> PyTree:
    """The results of the rules, and the leaves of `others` where there is no rule."""
    choose = lambda rule, result, other: other if rule is None else result
    return jtu.tree_map(choose, rules, results, others, is_leaf=_is_rule)


def _is_rule(x: Any) -> bool:
    return x is None or isinstance(x, AbstractRule)


def make_rules(
    accumulator: PyTree,
    outputs: tuple[PyTree, PyTree, PyTree],
    passes_state: bool,
    weights: Weights,
    executed: int | Array,
) -> PyTree:
    """One rule for each array of the output and each custom accumulator.

    There is none for leaves that are not arrays, which are the same for all
    microbatches, nor for the State that is passed on.

    **Arguments:**

    - `accumulator`: as given by the user, a prefix of the output.
    - `outputs`: what the function returns for a full microbatch, and for the smaller,
        last one, with a `jax.ShapeDtypeStruct` for every array; and whether each of
        these is the result of a matrix product.
    - `passes_state`: whether a State in the output is passed on. Otherwise, it is like
        any other part of the output.
    - `weights`: the weight of each microbatch.
    - `executed`: the number of microbatches that are evaluated.
    """
    divisors = {
        AccumulationType.SUM: None,
        AccumulationType.MEAN: weights.of_all(),
        AccumulationType.RUNNING_MEAN: weights.of_first(executed),
    }

    def is_passed_on(x: Any) -> bool:
        return passes_state and is_state(x)

    def rule_of_array(path: Any, kind: Any, out: Any, rest: Any, product: Any) -> Any:
        if not isinstance(out, jax.ShapeDtypeStruct | Summand):
            return None
        _check_output(f"output{jtu.keystr(path)}", kind, out, rest, weights)
        if kind is AccumulationType.CONCAT:
            return Concat(weights.split, rest)
        return Total(out.dtype, divisors[kind], product)

    def rules_of_part(path: Any, kind: Any, out: Any, rest: Any, product: Any) -> Any:
        if isinstance(kind, Accumulator) and not is_passed_on(out):
            return Custom(kind)
        rule = lambda subpath, *leaves: rule_of_array(path + subpath, kind, *leaves)
        is_leaf = lambda x: is_passed_on(x) or isinstance(x, Summand)
        return jtu.tree_map_with_path(rule, out, rest, product, is_leaf=is_leaf)

    is_leaf = lambda x: is_accumulator(x) or is_passed_on(x)
    return jtu.tree_map_with_path(rules_of_part, accumulator, *outputs, is_leaf=is_leaf)


def _check_output(where, kind, out, rest, weights) -> None:
    """Raises unless the values of all microbatches can be combined."""
    split, has_rows = weights.split, weights.has_rows
    skip = 1 if kind is AccumulationType.CONCAT or has_rows else 0
    if out.shape[skip:] != rest.shape[skip:]:
        raise InputError(
            f"{kind.name} cannot combine `{where}`, which has shape {rest.shape} "
            f"instead of {out.shape} for the last {split.rest} rows. Use CONCAT for "
            "rows."
        )
    fits = jnp.issubdtype(out.dtype, jnp.inexact) or (
        kind is AccumulationType.SUM and not jnp.issubdtype(out.dtype, bool)
    )
    if not (kind is AccumulationType.CONCAT or has_rows or fits):
        problem = f"{kind.name} cannot combine `{where}`, which has dtype {out.dtype}."
        fix = "Cast it in the function, or use another `AccumulationType`."
        raise InputError(f"{problem} {fix}")
