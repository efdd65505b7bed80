"""Checks of the fields of schedules, for `__check_init__`; traced values pass."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._jax_internals import is_traced
from ._dtypes import is_integer, largest_steps
from ._stateful import AbstractStatefulSchedule


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
