"""Schedules made of others by arithmetic."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain
from operator import add, mul
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import check_range
from .._types import RealScalarLike, Schedule
from ._constant import Constant
from ._dtypes import IntScalarLike, as_count, as_reals, of_counts, real_dtype
from ._schedule import AbstractSchedule
from ._validation import (
    ascending_or_equal,
    check_schedule,
    check_schedules,
    check_value,
)


class _AbstractReduction(AbstractSchedule):
    """Schedules whose values are joined by an operator."""

    schedules: tuple[Schedule, ...]
    _operator: ClassVar[Callable[[Any, Any], Any]]

    # The parts are checked here, all of them and with better words than beartype's.
    def __init__(self, schedules: Iterable[Any]):
        self.schedules = tuple(schedules)

    def __check_init__(self):
        if not self.schedules:
            raise ValueError(
                f"{type(self).__name__}: `schedules` must have at least one schedule, "
                "but is empty."
            )
        check_schedules(self, self.schedules)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        count = as_count(count)
        values = [schedule(count) for schedule in self.schedules]
        for i, value in enumerate(values):
            check_value(self, f"schedules[{i}]", value)
        return reduce(self._operator, _common(*values))


class Sum(_AbstractReduction):
    r"""The sum of schedules: $s(t) = \sum_i s_i(t)$.

    This is what `a + b` gives, where one of both may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that give a number or a 0-d array.

    **Raises:**

    A `ValueError` if there is none, and a `TypeError` if one is no function; when called,
    if one of them gives something else than a real number.
    """

    _operator = add


class Product(_AbstractReduction):
    r"""The product of schedules: $s(t) = \prod_i s_i(t)$.

    This is what `a * b` gives, where one of both may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that give a number or a 0-d array.

    **Raises:**

    A `ValueError` if there is none, and a `TypeError` if one is no function; when called,
    if one of them gives something else than a real number.
    """

    _operator = mul


class Clipped(AbstractSchedule):
    r"""A schedule within bounds: $s(t) = \min(\max(s_0(t), a), b)$.

    This is what `schedule.clip(a, b)` gives.

    **Arguments:**

    - `schedule`: $s_0$, a schedule, or any function of a 0-d integer array that gives a
        number or a 0-d array.
    - `min_value`: $a$, a number or a 0-d array. Defaults to `None`, for no bound.
    - `max_value`: $b$, likewise.

    **Raises:**

    A `ValueError` if a bound is NaN or has axes, or if `min_value` is above `max_value`,
    and a `TypeError` if `schedule` is no function; when called, if it gives something
    else than a real number.
    """

    schedule: Schedule
    min_value: RealScalarLike | None = None
    max_value: RealScalarLike | None = None

    def __check_init__(self):
        check_schedule(self, "schedule", self.schedule)
        bounds = {"min_value": self.min_value, "max_value": self.max_value}
        for name, bound in bounds.items():
            if bound is not None:
                check_range(self, name, float("-inf"))
        if None not in bounds.values() and not ascending_or_equal(*bounds.values()):
            raise ValueError(
                "Clipped: `min_value` must be at most `max_value`, which is "
                f"{self.max_value}, but is {self.min_value}."
            )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        value = self.schedule(as_count(count))
        check_value(self, "schedule", value)
        bounds = as_reals(self, "min_value", "max_value")
        value, *bounds = _common(
            value, *(bound for bound in bounds if bound is not None)
        )
        if self.min_value is not None:
            value = jnp.maximum(value, bounds[0])
        if self.max_value is not None:
            value = jnp.minimum(value, bounds[-1])
        return value


def _common(*values: Any) -> list[Float[Array, ""]]:
    dtype = real_dtype(*values)
    return [jnp.asarray(value, dtype) for value in values]


def operand(x: Any) -> Any:
    """A schedule, a function or a number as a schedule; anything else as `None`."""
    if callable(x):
        return x
    numbers = int | float | Array | np.ndarray | np.generic
    is_number = isinstance(x, numbers) and not isinstance(x, bool)
    return Constant(x) if is_number else None


def flattened(kind: type[Sum] | type[Product], *operands: Any) -> Sum | Product:
    """Their sum or product, without sums in sums or products in products."""
    parts = [x.schedules if isinstance(x, kind) else (x,) for x in operands]
    return kind(tuple(chain.from_iterable(parts)))
