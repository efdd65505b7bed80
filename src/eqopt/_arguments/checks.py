"""Checks of arguments; the values of traced hyperparameters are not checked."""

import functools
import operator
from types import NoneType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._jax_internals import is_traced
from .._types import AtLeast, Interval
from .._wrong_calls import described
from .annotations import Rule, kinds, rules


def check_fields(owner: object) -> None:
    """Raises unless the values of the fields are what their types say.

    Numbers have to be real and within their bounds, texts among the choices, dtypes of
    the state real, and a field for a transformation has to hold one. The values of
    schedules and traced values are not checked. Optimizers are created whenever a step is
    traced, so a plain number takes one call.
    """
    table = rules(type(owner))
    for name, value in vars(owner).items():
        rule = table.get(name)
        if rule is None or isinstance(value, rule.others):
            continue
        is_plain = type(value) in rule.plain
        if not is_plain or (rule.bounds and not rule.bounds.holds(value)):
            _check_field(name, value, rule)


def _check_field(name: str, value: Any, rule: Rule) -> None:
    if rule.is_dtype:
        return check_real_dtype(name, value)
    if isinstance(value, type) or (rule.is_closed and not rule.choices):
        names = " | ".join(x.__name__ for x in rule.others if x is not NoneType)
        expected = f"of type `{names}`" if rule.is_closed else "a number"
        raise InputError(f"`{name}` must be {expected}, but is {described(value)}")
    if rule.is_closed or (rule.choices and isinstance(value, str)):
        if not any(isinstance(value, type(x)) and value == x for x in rule.choices):
            problem = f"`{name}` must be one of {[*rule.choices]}, but is {value!r}."
            raise InputError(problem)
        return None
    is_module = isinstance(value, eqx.Module)
    if name == "learning_rate" and is_module and may_be_model(value):
        raise InputError(
            f"`{name}` is a module with matrices, `{type(value).__name__}`. Make the "
            "optimizer without the model, and its state with it: `state = "
            "opt.init(model)`. A schedule is an `eqopt.schedules.AbstractSchedule`."
        )
    if rule.takes_functions and callable(value):
        return None
    if rule.is_static and not isinstance(value, int | float | np.generic):
        why = "because it determines the compiled program"
        problem = f"`{name}` must be a Python number, {why}, but is {value!r}."
        raise InputError(problem)
    if isinstance(rule.bounds, AtLeast):
        return _check_count(name, value, rule.bounds)
    if rule.is_scalar:
        or_schedule = rule.takes_functions * " or a schedule"
        expected = f"a real number or a 0-d array{or_schedule}"
        check_scalar(f"`{name}` must be {expected}, but is", value)
    # The learning rate in a class of a user may be any array, or something else.
    if rule.bounds is not None and _is_real(value):
        check_bounds(name, value, rule.bounds)


def check_scalar(start: str, value: Any) -> None:
    """Raises an error that begins with `start` unless `value` is one real number."""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    if isinstance(value, bool) or not is_number:
        found = described(value)
    elif np.ndim(value) != 0:
        fix = "For several numbers, use `eqx.filter_vmap`."
        found = f"an array of shape {np.shape(value)}. {fix}"
    elif not _is_real(value):
        found = f"an array of dtype {_dtype(value)}."
    else:
        return
    raise InputError(f"{start} {found}")


_FROM_ZERO = Interval(0, includes_high=False)


def check_number_in(name: str, value: Any, bounds: Interval = _FROM_ZERO) -> None:
    """Raises an error unless `value` is one real number within bounds.

    By default, it must be finite and not negative. A traced value is not checked.
    """
    check_scalar(f"`{name}` must be a real number or a 0-d array, but is", value)
    check_bounds(name, value, bounds)


def _check_count(name: str, value: Any, bounds: AtLeast) -> None:
    start = f"`{name}` must be an integer of at least {bounds.low}, but is"
    check_scalar(start, value)
    is_integer = isinstance(value, int) or jnp.issubdtype(_dtype(value), np.integer)
    if is_integer and (is_traced(value) or bounds.holds(int(value))):
        return
    if is_integer and int(value) > bounds.at_most:
        start = f"`{name}` must be at most {bounds.at_most}, but is"
    advice = "" if is_integer else " Round it with `int(...)`, or divide with `//`."
    raise InputError(f"{start} {value!r}.{advice}")


def check_interval(
    name: str, value: Any, low: float, *bounds: Any, **more: Any
) -> None:
    """Does `check_bounds` for `Interval(low, *bounds, **more)`."""
    check_bounds(name, value, Interval(low, *bounds, **more))


def check_bounds(name: str, value: Any, bounds: Interval) -> None:
    """Raises an error unless the number is within the bounds. NaN is in none.

    The values of schedules and traced values are not checked.
    """
    if is_traced(value) or callable(value):
        return
    # An array's comparison would be traced under `jit`, and a bound in half precision.
    if not np.all(bounds.holds(np.asarray(value, float))):
        problem = f"`{name}` must be in {bounds}, but is {value}. {bounds.advice}"
        raise InputError(problem.rstrip())


def check_integer(name: str, value: Any, low: int) -> int:
    """`value` as a Python integer; raises unless it is an integer of at least `low`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise InputError(
            f"`{name}` must be a Python integer of at least {low}, but is {value!r}. "
            "It determines the compiled program, so it must be static under `jax.jit`."
        )
    return number


def check_needs(option: str, needed: str, is_met: bool, advice: str = "") -> None:
    """Raises an error unless an option has the other option that it needs."""
    if not is_met:
        raise InputError(f"`{option}` needs `{needed}`. {advice}".rstrip())


def check_returned(name: str, value: Any) -> Any:
    """The result of the schedule `name`; raises unless it is a number."""
    expected = "a real number or a 0-d array, but returned"
    check_scalar(f"the schedule `{name}` must return {expected}", value)
    return value


def _is_real(value: Any) -> bool:
    """Whether `value` is a real number, or an array of them."""
    kinds = np.floating, np.integer
    is_array = any(jnp.issubdtype(_dtype(value), kind) for kind in kinds)
    return isinstance(value, int | float) or is_array


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", np.dtype(object))


def check_real_dtype(name: str, dtype: Any) -> None:
    """Raises an error unless it is `None` or a real dtype from 16 bits on."""
    if dtype is None:
        return
    try:
        found = jnp.dtype(dtype)
        is_fit = jnp.issubdtype(found, np.floating) and found.itemsize > 1
    except TypeError:  # no dtype
        found, is_fit = dtype, False
    if not is_fit:
        raise InputError(
            f"`{name}` must be float16, bfloat16, float32 or float64, but is {found}."
        )


def may_be_model(x: Any) -> bool:
    """Whether `x` has matrices, like a model, and is not of a class for schedules."""
    has_matrix = any(eqx.is_array(a) and a.ndim > 1 for a in jtu.tree_leaves(x))
    return has_matrix and not getattr(type(x), "is_schedule", False)


def check_no_schedule(owner: object, in_any_field: bool = False) -> None:
    """Raises an error if a hyperparameter needs [`eqopt.Scheduled`][].

    Checks the fields that are marked as hyperparameters, or all fields that `waiting`
    checks.
    """
    names = waiting(owner) if in_any_field else hyperparameters(type(owner))
    for name in names:
        if callable(getattr(owner, name)):
            raise InputError(
                f"`{name}` is a schedule, which {type(owner).__name__} does not "
                "evaluate. Wrap the whole optimizer in `eqopt.Scheduled(optimizer)`, "
                "which does."
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
    fields = kinds(type(owner)).items()
    return [x for x, kind in fields if _is_schedule(getattr(owner, x), kind)]


def _is_schedule(value: Any, kind: str) -> bool:
    if kind in ("marked", "number"):
        return callable(value) and not isinstance(value, type)
    # Classes for schedules are on a floor above this module.
    if kind == "own":
        return getattr(type(value), "needs_scheduled", False)
    return kind == "unknown" and getattr(type(value), "is_schedule", False)
