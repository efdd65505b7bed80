"""Checks of hyperparameters, for `__check_init__`; traced values pass."""

from typing import Any

import jax
import numpy as np

from ._types import ScalarOrSchedule


def check_range(
    owner: object,
    name: str,
    low: float | int,
    high: float | int = float("inf"),
    *,
    includes_low: bool = True,
    includes_high: bool = False,
) -> None:
    """Raises a `ValueError` unless the hyperparameter `name` of `owner` is in range.

    NaN is out of any range.
    """
    value = getattr(owner, name)
    check_scalar(owner, name)
    if isinstance(value, jax.core.Tracer):
        return
    above = value >= low if includes_low else value > low
    below = value <= high if includes_high else value < high
    if not (above and (below or high == float("inf"))):
        interval = (
            f"{'[' if includes_low else '('}{low}, {high}{']' if includes_high else ')'}"
        )
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be in {interval}, but is {value}."
        )


def check_scalar(owner: object, name: str, or_schedule: bool = False) -> None:
    """Raises unless the hyperparameter is a real number or a 0-d array of one."""
    value: ScalarOrSchedule | Any = getattr(owner, name)
    if or_schedule and callable(value):
        return
    where = f"{type(owner).__name__}: `{name}`"
    expected = "a real number or a 0-d array" + or_schedule * " or a schedule"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number or (hasattr(value, "dtype") and hasattr(value, "shape"))):
        raise TypeError(
            f"{where} must be {expected}, but is {value!r} of type "
            f"{type(value).__name__}."
        )
    if np.ndim(value) != 0:
        raise ValueError(
            f"{where} must be {expected}, but has shape {np.shape(value)}. For a "
            "population, build and use the optimizer under `eqx.filter_vmap`: "
            f"`eqx.filter_vmap(lambda {name}: ...)(values)`."
        )
    if not is_number and not np.issubdtype(value.dtype, np.number) and (
        value.dtype.name not in _JAX_FLOATS
    ):
        raise TypeError(f"{where} must be {expected}, but has dtype {value.dtype}.")


_JAX_FLOATS = {"bfloat16", "float16"}


def check_count(owner: object, name: str, low: int = 1) -> None:
    """Raises unless the hyperparameter is an integer of at least `low`."""
    value = getattr(owner, name)
    if isinstance(value, jax.core.Tracer):
        return
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    is_array = hasattr(value, "dtype") and np.issubdtype(value.dtype, np.integer)
    if not (is_integer or is_array) or np.ndim(value) != 0 or value < low:
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be an integer of at least {low}, "
            f"but is {value!r}."
        )
