"""The base class of schedules, and schedules made by arithmetic.

Both are in one file, because `a + b` is itself a schedule.
"""

import abc
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain
from operator import add, mul
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments.checks import check_fields
from .._arguments.construction import Module
from .._types import Interval, RealScalarLike, Schedule
from ._dtypes import IntScalarLike, as_count, as_reals, of_counts, real_dtype
from ._validation import (
    ascending_or_equal,
    check_schedule,
    check_schedules,
    check_value,
)


class AbstractSchedule(Module):
    """A hyperparameter as a function of the number of steps taken so far.

    Wherever a hyperparameter may be a schedule, any function of the count works, such
    as a `lambda`. In a subclass of this class, the numbers are leaves: they can be
    changed without a new trace, mapped over and differentiated through.

    Schedules can be added and multiplied, with other schedules, functions of the count
    and numbers: `a + b`, `a - b`, `a * b`, `0.1 * a`, `a / 2`, `-a`.

    !!! example

        ```python
        class Hyperbola(eqopt.schedules.AbstractSchedule):
            init_value: float | Array
            decay_rate: float | Array

            def __call__(self, count):
                steps = jnp.asarray(count, jnp.float32)
                return self.init_value / (1 + self.decay_rate * steps)
        ```
    """

    is_schedule: ClassVar[bool] = True  # what the floors below know it by

    # So that NumPy numbers and arrays leave arithmetic with a schedule to the schedule.
    __array_ufunc__ = None

    @abc.abstractmethod
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        """The value in the step after `count` steps.

        **Arguments:**

        - `count`: an integer or an array of integers, traced or not; 0 in the first
            step. A negative count means 0. The schedules of eqopt accept arrays of
            counts, as in `schedule(jnp.arange(100))`; for other functions, use
            `jax.vmap`.

        **Returns:**

        An array of the shape of `count`, of dtype float32, or float64 with
        `jax_enable_x64`.

        **Raises:**

        A `TypeError` if `count` is not an integer.
        """

    def clip(
        self,
        min_value: RealScalarLike | None = None,
        max_value: RealScalarLike | None = None,
    ) -> "AbstractSchedule":
        """This schedule within bounds, an [`eqopt.schedules.Clipped`][].

        **Arguments:**

        - `min_value`: the lowest value, a number or a 0-d array, or `None` for no bound.
        - `max_value`: the highest value, a number or a 0-d array, or `None` for no
            bound.
        """
        return Clipped(self, min_value, max_value)

    def __add__(self, other: Any) -> "AbstractSchedule":
        return _combined(Sum, self, other)

    def __radd__(self, other: Any) -> "AbstractSchedule":
        return _combined(Sum, other, self)

    def __sub__(self, other: Any) -> "AbstractSchedule":
        return _combined(Sum, self, _negative(other))

    def __rsub__(self, other: Any) -> "AbstractSchedule":
        return _combined(Sum, other, -self)

    def __mul__(self, other: Any) -> "AbstractSchedule":
        return _combined(Product, self, other)

    def __rmul__(self, other: Any) -> "AbstractSchedule":
        return _combined(Product, other, self)

    def __truediv__(self, other: Any) -> "AbstractSchedule":
        if callable(other) or _as_schedule(other) is None:
            return NotImplemented
        return _combined(Product, self, 1 / _as_float(other))

    def __neg__(self) -> "AbstractSchedule":
        return _combined(Product, -1.0, self)


class Constant(AbstractSchedule):
    r"""Always the same value: $s(t) = c$.

    Use it as a part of a [`eqopt.schedules.Join`][].

    **Arguments:**

    - `value`: $c$, a number or a 0-d array. It may be infinite, for example for a
        threshold that does not apply yet.

    **Raises:**

    A `ValueError` if `value` is NaN or has axes.
    """

    value: Annotated[RealScalarLike, Interval()]

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        as_count(count)
        (value,) = as_reals(self, "value")
        # A copy, because a caller may keep it in a state and donate it.
        return jnp.array(value)


class _AbstractReduction(AbstractSchedule):
    """Schedules whose values are combined by an operator."""

    schedules: tuple[Schedule, ...]
    _operator: ClassVar[Callable[[Any, Any], Any]]

    # The parts are checked here, all of them and with better messages than beartype's.
    def __init__(self, schedules: Iterable[Any]):
        self.schedules = tuple(schedules)

    def __check_init__(self) -> None:
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

    This is the result of `a + b`, where one of them may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.

    **Raises:**

    A `ValueError` if `schedules` is empty, and a `TypeError` if one is not a function;
    when called, a `TypeError` if one of them does not return a real number.
    """

    _operator = add


class Product(_AbstractReduction):
    r"""The product of schedules: $s(t) = \prod_i s_i(t)$.

    This is the result of `a * b`, where one of them may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.

    **Raises:**

    A `ValueError` if `schedules` is empty, and a `TypeError` if one is not a function;
    when called, a `TypeError` if one of them does not return a real number.
    """

    _operator = mul


class Clipped(AbstractSchedule):
    r"""A schedule within bounds: $s(t) = \min(\max(s_0(t), a), b)$.

    This is the result of `schedule.clip(a, b)`.

    **Arguments:**

    - `schedule`: $s_0$, a schedule, or any function of a 0-d integer array that returns
        a number or a 0-d array.
    - `min_value`: $a$, a number or a 0-d array. Defaults to `None`, for no bound.
    - `max_value`: $b$, a number or a 0-d array. Defaults to `None`, for no bound.

    **Raises:**

    A `ValueError` if a bound is NaN or has axes, or if `min_value` is above
    `max_value`, and a `TypeError` if `schedule` is not a function; when called, a
    `TypeError` if it does not return a real number.
    """

    schedule: Schedule
    min_value: Annotated[RealScalarLike, Interval()] | None = None
    max_value: Annotated[RealScalarLike, Interval()] | None = None

    def __check_init__(self) -> None:
        check_schedule(self, "schedule", self.schedule)
        check_fields(self)
        bounds = self.min_value, self.max_value
        if None not in bounds and not ascending_or_equal(*bounds):
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
    dtype = real_dtype()
    return [jnp.asarray(value, dtype) for value in values]


def _combined(kind: type[Sum] | type[Product], *operands: Any) -> Any:
    """The schedules of a sum or product, without nested sums or products."""
    schedules = [_as_schedule(x) for x in operands]
    if any(x is None for x in schedules):
        return NotImplemented
    parts = [x.schedules if isinstance(x, kind) else (x,) for x in schedules]
    return kind(tuple(chain.from_iterable(parts)))


def _negative(x: Any) -> Any:
    """The negative of a schedule, a function or a number; anything else unchanged."""
    if callable(x):
        return _combined(Product, -1.0, x)
    return x if _as_schedule(x) is None else -_as_float(x)


def _as_float(x: Any) -> Any:
    """Returns a number as a float.

    The negative of an unsigned integer is a large number, and NumPy divides numbers of
    8 bits in float16.
    """
    return x.astype(real_dtype()) if isinstance(x, Array) else float(x)


def _as_schedule(x: Any) -> Any:
    """A schedule, a function or a number as a schedule; anything else as `None`."""
    if callable(x):
        return x
    numbers = int | float | Array | np.ndarray | np.generic
    is_number = isinstance(x, numbers) and not isinstance(x, bool)
    return Constant(x) if is_number else None
