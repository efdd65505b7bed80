"""Checks of the fields of schedules, for `__check_init__`; traced values pass."""

import itertools
import math
from typing import Any

from jax.core import Tracer

from .._checks import check_count, check_range, check_scalar
from ._dtypes import is_integer, largest_count


def check_finite(owner: object, name: str) -> None:
    """Raises unless the field is a finite real number or a 0-d array of one."""
    check_scalar(owner, name, or_schedule=False)
    value = getattr(owner, name)
    if not isinstance(value, Tracer) and not math.isfinite(value):
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be a finite number, but is "
            f"{value}. Look for a division by zero or an overflow where it is computed."
        )


def check_power(owner: object, name: str) -> None:
    """Raises unless the field is a finite exponent, not negative."""
    check_finite(owner, name)
    check_range(owner, name, 0)


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
    if not isinstance(value, Tracer) and int(value) > largest_count():
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be at most {largest_count()}, the "
            f"largest count, but is {value}. To stay at a value use `Constant`."
        )


def ascending(*values: Any) -> bool:
    """Whether the values ascend strictly, as far as neighbours are known."""
    return all(
        int(a) < int(b)  # which the promotion of dtypes has no say in
        for a, b in itertools.pairwise(values)
        if not (isinstance(a, Tracer) or isinstance(b, Tracer))
    )
