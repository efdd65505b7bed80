"""The base classes of schedules, and schedules that consist of others."""

import abc
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain, pairwise
from operator import add, le, lt, mul
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments.annotations import rules
from .._arguments.checks import check_fields, check_returned
from .._arguments.construction import Module
from .._errors import InputError
from .._jax_internals import is_traced
from .._types import AtLeast, Interval, RealScalarLike, Schedule, State
from ._dtypes import (
    IntScalarLike,
    as_count,
    as_integer,
    as_real,
    compiled,
    is_integer,
    of_counts,
    reachable,
    real_dtype,
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


class AbstractStatefulSchedule(Module):
    """A hyperparameter as a function of past events, such as losses.

    Pass it as a hyperparameter, and wrap the whole optimizer in [`eqopt.Scheduled`][],
    which keeps the schedule's state.

    !!! example

        ```python
        class HalvedWhenWorse(eqopt.schedules.AbstractStatefulSchedule):
            init_value: float

            def init(self):
                return jnp.asarray(self.init_value), jnp.asarray(jnp.inf)

            def update(self, state, *, value, **extra):
                rate, best = state
                return jnp.where(value > best, rate / 2, rate), jnp.minimum(value, best)

            def __call__(self, state, **extra):
                return state[0]


        opt = eqopt.Scheduled(eqopt.Adam(HalvedWhenWorse(1e-3)))
        model, state = opt.step(grads, state, model, value=loss)
        ```
    """

    is_schedule: ClassVar[bool] = True  # what the floors below know it by
    needs_scheduled: ClassVar[bool] = True  # no other class keeps its state

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def update(self, state: State, **extra: Any) -> State:
        """The state after one more step.

        **Arguments:**

        - `state`: the state before this step.
        - `extra`: the extra arguments of the optimizer's `update`, by name.
        """

    @abc.abstractmethod
    def __call__(self, state: State, **extra: Any) -> Any:
        """The value for the next step, a 0-d array.

        **Arguments:**

        - `state`: the state before that step.
        - `extra`: the extra arguments of the optimizer's `update`, by name. In the
            optimizer's `init`, there are none.
        """


class AbstractFormula(AbstractSchedule):
    """A schedule with a formula of its numbers, which is compiled once for the class."""

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _value(_with_arrays(self), as_count(count))

    @abc.abstractmethod
    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        """The value after `count` steps.

        Here, all numbers of `self` are arrays. Numbers of steps are integers like the
        count; all others have the dtype of values.
        """


@compiled
def _value(schedule: AbstractFormula, count: Int[Array, ""]) -> Float[Array, ""]:
    return schedule._formula(count)


def _with_arrays(schedule: AbstractFormula) -> AbstractFormula:
    table = rules(type(schedule))

    def convert(path, x):
        is_steps = isinstance(table[path[0].name].bounds, AtLeast)
        return as_integer(x) if is_steps else as_real(x)

    return jtu.tree_map_with_path(convert, schedule)


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
        # A copy, because a caller may keep it in a state and donate it.
        return jnp.array(as_real(self.value))


def as_tuple(given: Iterable[Any]) -> tuple[Any, ...]:
    """For fields that accept any iterable: `tuple`, with types for the constructor."""
    return tuple(given)


class _AbstractReduction(AbstractSchedule):
    """Schedules whose values are combined by an operator."""

    schedules: tuple[Schedule, ...] = eqx.field(converter=as_tuple)

    _operator: ClassVar[Callable[[Any, Any], Any]]

    def __check_init__(self) -> None:
        _check_schedules(self.schedules)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        count = as_count(count)
        values = (
            _checked_value(f"schedules[{i}]", schedule(count))
            for i, schedule in enumerate(self.schedules)
        )
        return reduce(self._operator, values)


class Sum(_AbstractReduction):
    r"""The sum of schedules: $s(t) = \sum_i s_i(t)$.

    This is the result of `a + b`, where one of them may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.

    **Raises:**

    A `TypeError` if one of `schedules` is not a function, or, when called, if one of
    them does not return a real number.
    """

    _operator = add


class Product(_AbstractReduction):
    r"""The product of schedules: $s(t) = \prod_i s_i(t)$.

    This is the result of `a * b`, where one of them may be a number or a function.

    **Arguments:**

    - `schedules`: $s_0, s_1, …$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.

    **Raises:**

    A `TypeError` if one of `schedules` is not a function, or, when called, if one of
    them does not return a real number.
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
        check_fields(self)
        _check_schedule("schedule", self.schedule)
        if self.min_value is not None and self.max_value is not None:
            check_order(self, "min_value", "max_value")

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        value = _checked_value("schedule", self.schedule(as_count(count)))
        if self.min_value is not None:
            value = jnp.maximum(value, as_real(self.min_value))
        if self.max_value is not None:
            value = jnp.minimum(value, as_real(self.max_value))
        return value


class Join(AbstractSchedule):
    r"""Schedules one after the other; each counts from its own beginning.

    $$s(t) = s_i(t - b_i) \quad\text{for}\quad b_i \le t < b_{i+1},
        \qquad b_0 = 0,\; b_n = \infty$$

    !!! example

        ```python
        from eqopt.schedules import Constant, Join, Linear

        # Warm up, stay, decay.
        Join(
            [Linear(0.0, 1e-3, 100), Constant(1e-3), Linear(1e-3, 0.0, 200)],
            boundaries=[100, 800],
        )
        ```

    A schedule is evaluated only at its own counts. At other counts, it is evaluated at
    the nearest one, and the result is ignored. So its values outside its range cannot
    make derivatives NaN.

    **Arguments:**

    - `schedules`: $s_0, …, s_{n-1}$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.
    - `boundaries`: $b_1 < … < b_{n-1}$, the counts at which the next schedule begins:
        integers or 0-d integer arrays, or one array, of at least 0. There is one fewer
        than `schedules`.

    **Raises:**

    A `ValueError` or `TypeError` if `schedules` is empty, if `boundaries` is not
    ascending or does not match `schedules`, or if a schedule is not a function; when
    called, if a schedule does not return a real number.
    """

    schedules: tuple[Schedule, ...] = eqx.field(converter=as_tuple)
    boundaries: tuple[IntScalarLike, ...] = eqx.field(converter=as_tuple)

    def __check_init__(self) -> None:
        _check_schedules(self.schedules)
        if len(self.schedules) != len(self.boundaries) + 1:
            raise InputError(
                "`boundaries` must have one entry fewer than `schedules`, but there are "
                f"{len(self.boundaries)} for {len(self.schedules)} schedules."
            )
        check_boundaries("boundaries", self.boundaries)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return one_after_the_other(self.schedules, self.boundaries, count)


def one_after_the_other(schedules, boundaries, count) -> Float[Array, ""]:
    """The value of the active schedule; each counts from its own beginning."""
    count = as_count(count)
    starts = reachable((0, *boundaries))
    values = []
    for i, schedule in enumerate(schedules[: len(starts)]):
        own = jnp.minimum(count, starts[i + 1] - 1) if starts[i + 1 :] else count
        value = schedule(jnp.maximum(own, starts[i]) - starts[i])
        values.append(_checked_value(f"schedules[{i}]", value))
    joined = values[0]
    for start, value in zip(starts[1:], values[1:], strict=True):
        joined = jnp.where(count < start, joined, value)
    return joined


def ascend(*values: Any, strictly: bool = True) -> bool:
    """Whether the values ascend, as far as neighbours are known."""
    is_ordered = lt if strictly else le
    return all(
        is_ordered(float(a), float(b))
        for a, b in pairwise(values)
        if not (is_traced(a) or is_traced(b))
    )


def check_order(owner: object, low: str, high: str, strictly: bool = False) -> None:
    """Raises unless the values of two fields ascend, as far as they are known."""
    a, b = getattr(owner, low), getattr(owner, high)
    if not ascend(a, b, strictly=strictly):
        than = "more than" if strictly else "at least"
        raise InputError(f"`{high}` must be {than} `{low}`, {a}, but is {b}.")


def check_boundaries(name: str, counts: tuple[Any, ...]) -> None:
    """Raises unless these are integers that ascend strictly, from 0 on."""
    if not (all(map(is_integer, counts)) and ascend(-1, *counts)):
        raise InputError(
            f"`{name}` must be integers that ascend strictly, of at least 0, but is "
            f"{counts}. They count from the start: add up lengths with "
            "`itertools.accumulate`."
        )


def _check_schedules(schedules: tuple[Any, ...]) -> None:
    for i, schedule in enumerate(schedules):
        _check_schedule(f"schedules[{i}]", schedule)


def _check_schedule(place: str, schedule: Any) -> None:
    no_function = type, AbstractStatefulSchedule
    if not callable(schedule) or isinstance(schedule, no_function):
        raise InputError(
            f"`{place}` must be a function of the count, but is {schedule!r}. For a "
            "fixed value, use `Constant(...)`. A schedule with a state must be the "
            "hyperparameter itself."
        )


def _checked_value(place: str, value: Any) -> Float[Array, ""]:
    """What a schedule returned, as an array; raises unless it is a number."""
    return jnp.asarray(check_returned(place, value), real_dtype())


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
