"""Checks of the fields of schedules, for `__check_init__`; traced values pass."""

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._arguments.checks import check_count, check_range, check_scalar
from .._jax_internals import is_traced
from ._dtypes import is_integer, largest_steps, real_dtype
from ._stateful import AbstractStatefulSchedule


# Smaller numbers are zero in float32, or nearly so; larger ones are infinite.
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-24) * 2.0**127


def overflow() -> float:
    """Returns the number from which on numbers are infinite in a schedule."""
    return _LARGEST if real_dtype() == np.float32 else math.inf


def check_finite(owner: object, name: str) -> None:
    """Raises unless the field is a finite real number or a 0-d array.

    It must also be finite in float32, if schedules compute in that.
    """
    check_scalar(owner, name, or_schedule=False)
    value = getattr(owner, name)
    if is_traced(value):
        return
    size = abs(value if isinstance(value, int) else float(value))
    if not size < math.inf:
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be a finite number, but is "
            f"{value}. Look for a division by zero or an overflow in its computation."
        )
    if size >= overflow():
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be below 3.4e38, the largest "
            f"number in float32, but is {value}. Look for an overflow in its "
            "computation."
        )


def check_power(owner: object, name: str) -> None:
    """Raises unless the field is a finite exponent, not negative."""
    check_finite(owner, name)
    check_range(owner, name, 0)


def check_positive(owner: object, name: str) -> None:
    """Raises unless the field is a finite number above 0."""
    check_finite(owner, name)
    check_range(owner, name, 0, includes_low=False)
    value = getattr(owner, name)
    is_narrow = real_dtype() == np.float32
    if is_narrow and not is_traced(value) and float(value) < _SMALLEST:
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be at least 1.2e-38, because smaller "
            f"numbers are zero in float32, but is {value}."
        )


def check_steps(owner: object, name: str, low: int) -> None:
    """Raises unless the field is a number of steps, of at least `low`."""
    check_scalar(owner, name, or_schedule=False)
    value = getattr(owner, name)
    if not is_integer(value):
        raise TypeError(
            f"{type(owner).__name__}: `{name}` must be an integer, but is {value!r}. "
            "Round it with `int(...)`, or divide with `//`."
        )
    check_count(owner, name, low)
    if not is_traced(value) and int(value) > largest_steps():
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be at most {largest_steps()}, but "
            f"is {value}. For a constant value, use `Constant`."
        )


def ascending(*values: Any) -> bool:
    """Whether the values ascend strictly, as far as neighbours are known."""
    return all(
        int(a) < int(b)  # without promotion of dtypes
        for a, b in itertools.pairwise(values)
        if not (is_traced(a) or is_traced(b))
    )


def check_ascending(
    owner: object, name: str, values: tuple[Any, ...], low: int
) -> None:
    """Raises unless the values are counts that ascend strictly, from `low` on."""
    kind = type(owner).__name__
    if not all(is_integer(x) for x in values):
        raise TypeError(
            f"{kind}: `{name}` must be integers, but is {values}. Round them with "
            "`int(...)`, or divide with `//`."
        )
    if not ascending(low - 1, *values, largest_steps() + 1):
        raise ValueError(
            f"{kind}: `{name}` must ascend strictly, from at least {low} to at most "
            f"{largest_steps()}, but is {values}. They are counts since the start: if "
            "you have the length of each part, add them up with `itertools.accumulate`."
        )


def check_schedules(owner: object, schedules: tuple[Any, ...]) -> None:
    """Raises a `TypeError` unless they are functions of the count."""
    for i, schedule in enumerate(schedules):
        check_schedule(owner, f"schedules[{i}]", schedule)


def check_schedule(owner: object, place: str, schedule: Any) -> None:
    """Raises a `TypeError` unless the value is a function of the count."""
    message = (
        f"{type(owner).__name__}: `{place}` must be a schedule or a function of the "
        "count, but is"
    )
    if not callable(schedule):
        raise TypeError(
            f"{message} {schedule!r}. For a fixed value, use `Constant(...)`."
        )
    if isinstance(schedule, type):
        raise TypeError(
            f"{message} the class {schedule.__name__}. Create an instance of it."
        )
    if isinstance(schedule, AbstractStatefulSchedule):
        raise TypeError(
            f"{message} a {type(schedule).__name__}, which has a state. Pass it as "
            "the hyperparameter itself, inside `eqopt.Scheduled`."
        )


def is_real(value: Any) -> bool:
    """Whether `value` is a real number or a 0-d real array, traced or not."""
    return isinstance(value, int | float) or (
        isinstance(value, Array | np.ndarray | np.generic)
        and np.ndim(value) == 0
        and not jnp.issubdtype(value.dtype, jnp.complexfloating)
    )


def check_value(owner: object, place: str, value: Any) -> None:
    """Raises a `TypeError` unless a schedule returned a real number or a 0-d array."""
    if not is_real(value):
        raise TypeError(
            f"{type(owner).__name__}: a schedule must return a real number or a 0-d "
            f"array, but `{place}` returned {value!r}."
        )


def ascending_or_equal(low: Any, high: Any) -> bool:
    """Whether `low` is at most `high`, if both are known."""
    known = not (is_traced(low) or is_traced(high))
    return not known or float(low) <= float(high)


def fits(parts: tuple[Any, ...], whole: Any) -> bool:
    """Whether the numbers of steps sum to at most the total, if all are known."""
    if any(is_traced(x) for x in (*parts, whole)):
        return True
    return sum(int(x) for x in parts) <= int(whole)
