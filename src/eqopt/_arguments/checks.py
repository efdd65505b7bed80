"""Checks of arguments; the values of traced hyperparameters are not checked."""

import functools
import math
import operator
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._jax_internals import is_traced
from .annotations import kinds
from .owners import name_of


def check_range(
    owner: object,
    name: str,
    low: float | int,
    high: float | int = math.inf,
    *,
    includes_low: bool = True,
    includes_high: bool = False,
) -> None:
    """Raises a `ValueError` unless the hyperparameter `name` of `owner` is in range.

    NaN is out of any range; infinity is in range if `high` is infinite. The values of
    schedules are not checked.
    """
    check_scalar(owner, name)
    value = getattr(owner, name)
    if not callable(value):
        check_interval(
            type(owner).__name__,
            name,
            value,
            low,
            high,
            includes_low=includes_low,
            includes_high=includes_high or high == math.inf,
        )


def check_interval(
    owner: str,
    name: str,
    value: Any,
    low: float | int,
    high: float | int = math.inf,
    *,
    includes_low: bool = True,
    includes_high: bool = True,
) -> None:
    """Raises a `ValueError` unless the number is in the interval. NaN is in none."""
    if is_traced(value):
        return
    value = np.asarray(value)  # an array's comparison would be traced under `jit`
    is_high_enough = value >= low if includes_low else value > low
    is_low_enough = value <= high if includes_high else value < high
    if not (is_high_enough and is_low_enough):
        left = "(["[includes_low and low > -math.inf]
        right = ")]"[includes_high and high < math.inf]
        raise ValueError(
            f"{owner}: `{name}` must be in {left}{low}, {high}{right}, but is {value}."
        )


def check_integer(owner: str, name: str, value: Any, low: int) -> int:
    """`value` as a Python integer; raises unless it is an integer of at least `low`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise ValueError(
            f"{owner}: `{name}` must be a Python integer of at least {low}, but is "
            f"{value!r}. It determines the compiled program, so it must be static "
            "under `jax.jit`."
        )
    return number


def check_scalar(owner: object, name: str, or_schedule: bool = True) -> None:
    """Raises unless the hyperparameter is a real number, a 0-d array or a schedule."""
    value: Any = getattr(owner, name)
    if or_schedule and callable(value):
        return
    message = (
        f"{type(owner).__name__}: `{name}` must be a real number or a 0-d array"
        + or_schedule * " or a schedule"
    )
    if isinstance(value, bool) or not (
        isinstance(value, int | float) or (hasattr(value, "dtype"))
    ):
        raise TypeError(f"{message}, but is {value!r} of type {type(value).__name__}.")
    if np.ndim(value) != 0:
        raise ValueError(
            f"{message}, but has shape {np.shape(value)}. For a population, create "
            "and use the optimizer inside `eqx.filter_vmap`: `eqx.filter_vmap(lambda "
            f"{name}: ...)(values)`."
        )
    # Not with `jnp.result_type`, which raises an error of its own for texts and dates.
    if not _is_real(value):
        raise TypeError(f"{message}, but has dtype {_dtype(value)}.")


def check_count(owner: object, name: str, low: int = 1) -> None:
    """Raises a `ValueError` unless the hyperparameter is an integer of at least `low`."""
    value: Any = getattr(owner, name)
    is_number = isinstance(value, int) or hasattr(value, "dtype")
    is_integer = (
        is_number
        and not isinstance(value, bool)
        and np.ndim(value) == 0
        and (isinstance(value, int) or jnp.issubdtype(_dtype(value), np.integer))
    )
    if not (is_integer and (is_traced(value) or np.asarray(value) >= low)):
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be an integer of at least {low}, "
            f"but is {value!r}."
        )


def check_choice(owner: object, name: str, choices: Iterable[str]) -> None:
    """Raises a `ValueError` unless the field is one of the choices."""
    value = getattr(owner, name)
    if value not in choices:
        raise ValueError(
            f"{type(owner).__name__}: `{name}` must be one of {[*choices]}, but is "
            f"{value!r}."
        )


def check_returned(owner: object, name: str, value: Any) -> Any:
    """The result of the schedule `name` of `owner`; raises unless it is a number."""
    is_real = not isinstance(value, bool) and _is_real(value)
    if is_real and np.ndim(value) == 0:
        return value
    if is_real:
        found = f"an array of shape {np.shape(value)}"
    elif hasattr(value, "dtype"):
        found = f"an array of dtype {_dtype(value)}"
    else:
        found = repr(value)
    raise (ValueError if is_real else TypeError)(
        f"{name_of(owner)}: the schedule `{name}` must return a real number or a 0-d "
        f"array, but returned {found}."
    )


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", np.dtype(object))


def _is_real(value: Any) -> bool:
    """Whether `value` is a real number, or an array of them."""
    kinds = np.floating, np.integer
    is_array = any(jnp.issubdtype(_dtype(value), kind) for kind in kinds)
    return isinstance(value, int | float) or is_array


def check_fields(owner: object) -> None:
    """Raises for classes instead of instances, negative learning rates and wrong dtypes.

    The dtypes in which `owner` stores its state must be real. A class is no mistake in a
    field that is static or annotated as a class.
    """
    for name, value in vars(owner).items():
        is_class = isinstance(value, type) and issubclass(value, eqx.Module)
        if is_class and not _is_for_classes(type(owner), name):
            raise TypeError(
                f"{type(owner).__name__}: `{name}` is the class `{value.__name__}`. "
                f"Create an instance: `{value.__name__}(...)`."
            )
    rate = vars(owner).get("learning_rate")
    if isinstance(rate, eqx.Module) and may_be_model(rate):
        raise TypeError(
            f"{type(owner).__name__}: `learning_rate` is a module with matrices, "
            f"`{type(rate).__name__}`. Make the optimizer without the model, and its "
            "state with it: `state = opt.init(model)`. If it is a schedule, subclass "
            "`eqopt.schedules.AbstractSchedule`."
        )
    # A comparison of arrays would be traced under `jit`.
    if _is_real(rate) and not is_traced(rate) and np.any(np.asarray(rate) < 0):
        raise ValueError(
            f"{type(owner).__name__}: `learning_rate` must not be negative, but is "
            f"{rate}. To ascend, use `eqopt.Chain(eqopt.Scale(-1.0), optimizer)`."
        )
    for name in REAL_DTYPES:
        check_real_dtype(owner, name)


def check_real_dtype(owner: object, name: str) -> None:
    """Raises a `TypeError` unless the field is `None` or a real dtype from 16 bits on."""
    dtype = vars(owner).get(name)
    if dtype is None:
        return
    try:
        found = jnp.dtype(dtype)
        is_fit = jnp.issubdtype(found, np.floating) and found.itemsize > 1
    except TypeError:  # no dtype
        found, is_fit = dtype, False
    if not is_fit:
        raise TypeError(
            f"{type(owner).__name__}: `{name}` must be float16, bfloat16, float32 or "
            f"float64, but is {found}. Complex parameters are stored in the complex "
            "dtype with the same precision."
        )


# Only fields with these names: a class of a user may have others, for codes or keys.
REAL_DTYPES = (
    *("mu_dtype", "nu_dtype", "accumulator_dtype", "state_dtype", "param_dtype"),
    "ns_dtype",
)


def _is_for_classes(cls: type, name: str) -> bool:
    field = cls.__dataclass_fields__[name]
    return field.metadata.get("static", False) or kinds(cls)[name] == "class"


def may_be_model(x: Any) -> bool:
    """Whether `x` has matrices, like a model, and is not of a class for schedules."""
    leaves = () if _has_mark(x) else jtu.tree_leaves(x)
    return any(np.ndim(leaf) > 1 for leaf in leaves if eqx.is_array(leaf))


def check_no_schedule(owner: object, in_any_field: bool = False) -> None:
    """Raises a `TypeError` if a hyperparameter needs [`eqopt.Scheduled`][].

    Checks the fields that are marked as hyperparameters, or all fields that `waiting`
    checks.
    """
    names = waiting(owner) if in_any_field else hyperparameters(type(owner))
    for name in names:
        value = getattr(owner, name)
        if callable(value):
            kind = "stateful schedule" if _has_state(value) else "schedule"
            raise TypeError(
                f"{name_of(owner)}: `{name}` is a {kind}, which "
                f"{type(owner).__name__} does not evaluate. Wrap the whole optimizer "
                "in `eqopt.Scheduled(optimizer)`, which evaluates all schedules in it."
            )


@functools.cache
def hyperparameters(cls: type) -> tuple[str, ...]:
    """The fields that are, or may be, a `Hyperparameter`."""
    return tuple(name for name, kind in kinds(cls).items() if kind == "marked")


def waiting(owner: object) -> list[str]:
    """The fields of a transformation with a schedule that it does not evaluate itself.

    In a field for numbers, any function counts as a schedule. In a field for functions,
    only a stateful schedule counts, and in other fields, only schedules of
    [`eqopt.schedules`][].
    """
    return [
        name
        for name, kind in kinds(type(owner)).items()
        if _is_schedule(getattr(owner, name), kind)
    ]


def _is_schedule(value: Any, kind: str) -> bool:
    if kind in ("marked", "number"):
        return callable(value) and not isinstance(value, type)
    return (
        _has_state(value) if kind == "own" else kind == "unknown" and _has_mark(value)
    )


def _has_mark(x: Any) -> bool:
    """Whether `x` is of a class for schedules, which are on a floor above this module."""
    return getattr(type(x), "is_schedule", False)


def _has_state(x: Any) -> bool:
    return getattr(type(x), "needs_scheduled", False)
