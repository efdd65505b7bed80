"""How the values of the microbatches are combined: how it is done."""

import abc
import functools as ft
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, PyTree

from ._accumulator import AccumulationType, Accumulator, is_accumulator
from ._rows import Split


class AbstractRule(eqx.Module):
    """An accumulator that has seen the part of the output it is for."""

    @abc.abstractmethod
    def aggregate(self, values: Any) -> Any:
        """Combines the rows of one microbatch, which lie along axis 0."""

    @abc.abstractmethod
    def init(self, like: Any) -> Any:
        """The carry before the first microbatch."""

    @abc.abstractmethod
    def update(self, carry: Any, value: Any, index: Any, rest: bool) -> Any:
        """The carry after microbatch `index`. `rest`: is it the last, smaller one?"""

    @abc.abstractmethod
    def finalize(self, carry: Any) -> Any:
        """The result."""


class _Keep(AbstractRule):
    """For a leaf that is not an array: it is the same for all microbatches."""

    value: Any

    def aggregate(self, values: None) -> None:
        return None

    def init(self, like: None) -> None:
        return None

    def update(self, carry: None, value: None, index: Any, rest: bool) -> None:
        return None

    def finalize(self, carry: None) -> Any:
        return self.value


class _Custom(AbstractRule):
    """For whatever stands at the place of an `Accumulator`."""

    accumulator: Accumulator

    def aggregate(self, values: Any) -> Any:
        return self.accumulator.aggregate(values)

    def init(self, like: Any) -> Any:
        return self.accumulator.init(like)

    def update(self, carry: Any, value: Any, index: Any, rest: bool) -> Any:
        return self.accumulator.update(carry, value, index)

    def finalize(self, carry: Any) -> Any:
        return self.accumulator.finalize(carry)


class _Total(AbstractRule):
    """Sum and means of one array: a mean is a weighted sum, divided once at the end."""

    dtype: Any
    weights: tuple[int, int]  # of a full microbatch, and of the smaller, last one
    divisor: float | Array | None  # `None` for a sum

    def aggregate(self, values: Array) -> Array:
        if self.divisor is not None and not self._inexact:
            values = values.astype(jnp.result_type(float))
        return jnp.sum(values.astype(_wide(values.dtype)), axis=0)

    def init(self, like: Any) -> Array:
        return jnp.zeros_like(like, dtype=_wide(like.dtype))

    def update(self, carry: Array, value: Array, index: Any, rest: bool) -> Array:
        value = value.astype(carry.dtype)
        weight = self.weights[rest]
        return carry + (value if weight == 1 else value * weight)

    def finalize(self, carry: Array) -> Array:
        if self.divisor is not None:
            carry = carry / jnp.asarray(self.divisor, carry.dtype)
        # Rows of integers have got the dtype that `jnp.sum` or `jnp.mean` gives them.
        return carry.astype(self.dtype) if self._inexact else carry

    @property
    def _inexact(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))


class _Concat(AbstractRule):
    """The concatenation of one array."""

    split: Split
    rest: Any  # shape and dtype of the value of the smaller, last microbatch

    def aggregate(self, values: Array) -> Array:
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
        self, carry: tuple[Array, Array | None], value: Array, index: Any, rest: bool
    ) -> tuple[Array, Array | None]:
        columns, last = carry
        if rest:
            return columns, value
        axis = min(1, value.ndim)
        return lax.dynamic_update_index_in_dim(columns, value, index, axis), last

    def finalize(self, carry: tuple[Array, Array | None]) -> Array:
        columns, last = carry
        rows = lax.collapse(columns, 0, min(2, columns.ndim))
        return rows if last is None else jnp.concatenate([rows, jnp.atleast_1d(last)])


def make_rules(
    accumulator: PyTree,
    output: PyTree,
    rest_output: PyTree,
    split: Split,
    executed: int | Array,
    has_rows: bool,
) -> PyTree:
    """One rule for each array of the output and for each custom accumulator.

    **Arguments:**

    - `accumulator`: as given by the user, a prefix of `output`.
    - `output`, `rest_output`: what the function returns for a full microbatch, and for
        the smaller, last one, with a `jax.ShapeDtypeStruct` for every array.
    - `split`: the sizes of the microbatches.
    - `executed`: how many of them are evaluated.
    - `has_rows`: whether the output has its rows along axis 0, still to be aggregated.
    """
    _check_prefix(accumulator, output)
    # A mean weights microbatches by their rows, which its divisor counts, in units of
    # full microbatches if there are no others. Aggregated rows are a sum already.
    equal = split.rest == 0 and not has_rows
    unit = split.size if equal else 1
    weights = (1, 1) if equal or has_rows else (split.size, split.rest)
    if isinstance(executed, int):
        done = max(1, min(executed * split.size, split.rows))
    else:
        done = jnp.clip(executed * split.size, 1, split.rows)
    divisors = {
        AccumulationType.SUM: None,
        AccumulationType.MEAN: split.rows / unit,
        AccumulationType.RUNNING_MEAN: done / unit,
    }
    make_rule = ft.partial(_rule, weights, divisors, split, has_rows)
    return jtu.tree_map_with_path(
        lambda path, kind, out, rest: (
            _Custom(kind)
            if isinstance(kind, Accumulator)
            else jtu.tree_map_with_path(
                lambda subpath, o, r: make_rule(path + subpath, kind, o, r), out, rest
            )
        ),
        accumulator,
        output,
        rest_output,
        is_leaf=is_accumulator,
    )


def _check_prefix(accumulator: PyTree, output: PyTree) -> None:
    try:
        jtu.tree_map(lambda *_: None, accumulator, output, is_leaf=is_accumulator)
    except ValueError:
        pass
    else:
        return
    has = jtu.tree_leaves_with_path(accumulator, is_leaf=is_accumulator)
    needs = jtu.tree_leaves_with_path(output, is_leaf=lambda x: x is None)
    has, needs = [path for path, _ in has], [path for path, _ in needs]
    missing = [p for p in needs if not any(p[: len(q)] == q for q in has)]
    extra = [q for q in has if not any(p[: len(q)] == q for p in needs)]
    where = "The types of the containers differ."
    if missing:
        where = f"There is none for `output{jtu.keystr(missing[0])}`."
    elif extra:
        where = f"There is no output for `accumulator{jtu.keystr(extra[0])}`."
    found = jtu.tree_structure(accumulator, is_leaf=is_accumulator)
    raise ValueError(
        "`accumulator` must have the structure of the function's output, or be a "
        f"prefix of it. {where} A single `AccumulationType` treats all of the output "
        "alike.\n"
        f"Found:    {found}\nExpected: {jtu.tree_structure(output)}"
    )


def _rule(
    weights: tuple[int, int],
    divisors: dict[AccumulationType, float | Array | None],
    split: Split,
    has_rows: bool,
    path: Any,
    kind: AccumulationType,
    output: Any,
    rest_output: Any,
) -> AbstractRule:
    if not isinstance(output, jax.ShapeDtypeStruct):
        return _Keep(output)
    where = f"output{jtu.keystr(path)}"
    concat = kind is AccumulationType.CONCAT
    skip = 1 if concat or has_rows else 0
    if output.shape[skip:] != rest_output.shape[skip:]:
        raise ValueError(
            f"{kind.name} cannot combine `{where}`: it has shape {output.shape} for "
            f"microbatches of {split.size} rows, but {rest_output.shape} for the last "
            f"one of {split.rest}. Use CONCAT for what has one entry per row, or a "
            f"microbatch size that divides {split.rows}."
        )
    if concat:
        return _Concat(split, rest_output)
    divisor = divisors[kind]
    if not (divisor is None or has_rows or jnp.issubdtype(output.dtype, jnp.inexact)):
        raise ValueError(
            f"{kind.name} needs floating-point values, but `{where}` has dtype "
            f"{output.dtype}. Cast it in the function, or use SUM."
        )
    return _Total(output.dtype, (1, 1) if divisor is None else weights, divisor)


def _wide(dtype: Any) -> Any:
    small = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if small else dtype
