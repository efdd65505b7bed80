"""Checks of arguments; the values of traced hyperparameters are not checked."""

import functools
import math
import operator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._jax_internals import is_traced
from .._types import AtLeast
from .._wrong_calls import described
from .annotations import Rule, kinds, rules


def check_fields(owner: object) -> None:
    """Raises unless the values of the fields are what their types say.

    Numbers have to be real and within their bounds, texts among the choices, dtypes of
    the state real, and a field for a transformation has to hold one. The values of
    schedules and traced values are not checked. A class instead of an instance is a
    mistake, unless its field is static or annotated as a class. Optimizers are created
    whenever a step is traced, so most values take no call.
    """
    cls = type(owner)
    table = rules(cls)
    for name, value in vars(owner).items():
        rule = table.get(name)
        if rule and type(value) in rule.plain and rule.low <= value < rule.high:
            continue
        if isinstance(value, type):
            _check_is_no_class(cls, name, value)
        if rule and not isinstance(value, rule.others):
            _check_field(cls.__name__, name, value, rule)


def _check_is_no_class(cls: type, name: str, value: type) -> None:
    is_static = cls.__dataclass_fields__[name].metadata.get("static", False)
    if issubclass(value, eqx.Module) and not is_static and kinds(cls)[name] != "class":
        raise InputError(
            cls.__name__,
            f"`{name}` is the class `{value.__name__}`. Create an "
            f"instance: `{value.__name__}(...)`.",
        )


def _check_field(owner: str, name: str, value: Any, rule: Rule) -> None:
    if rule.is_dtype:
        return check_real_dtype(owner, name, value)
    if rule.choices and (rule.is_closed or isinstance(value, str)):
        return _check_choice(owner, name, value, rule.choices)
    if rule.is_closed:
        expected = " | ".join(cls.__name__ for cls in rule.others)
        problem = f"`{name}` must be of type `{expected}`, but is {described(value)}"
        raise InputError(owner, problem.replace("NoneType", "None"))
    if name == "learning_rate" and isinstance(value, eqx.Module):
        _check_is_no_model(owner, name, value)
    if rule.takes_functions and callable(value):
        return None
    if rule.is_static and not isinstance(value, int | float | np.generic):
        raise InputError(
            owner,
            f"`{name}` must be a Python number, because it determines the "
            f"compiled program, but is {value!r}.",
        )
    if isinstance(rule.bounds, AtLeast):
        return _check_count(owner, name, value, rule.bounds)
    if rule.is_scalar:
        or_schedule = rule.takes_functions * " or a schedule"
        expected = f"a real number or a 0-d array{or_schedule}"
        check_scalar(owner, f"`{name}` must be {expected}, but is", value)
    # The learning rate in a class of a user may be any array, or something else.
    if rule.bounds is not None and _is_real(value) and not is_traced(value):
        check_interval(owner, name, value, **vars(rule.bounds))


def _check_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(isinstance(value, type(x)) and value == x for x in choices):
        raise InputError(
            owner, f"`{name}` must be one of {[*choices]}, but is {value!r}."
        )


def _check_is_no_model(owner: str, name: str, value: eqx.Module) -> None:
    if may_be_model(value):
        raise InputError(
            owner,
            f"`{name}` is a module with matrices, `{type(value).__name__}`. "
            "Make the optimizer without the model, and its state with it: `state = "
            "opt.init(model)`. If it is a schedule, subclass "
            "`eqopt.schedules.AbstractSchedule`.",
        )


def check_scalar(owner: object, start: str, value: Any) -> None:
    """Raises an error that begins with `start` unless `value` is one real number."""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    if isinstance(value, bool) or not is_number:
        raise InputError(owner, f"{start} {described(value)}")
    if np.ndim(value) != 0:
        fix = "For a population, use the optimizer inside `eqx.filter_vmap`."
        raise InputError(owner, f"{start} an array of shape {np.shape(value)}. {fix}")
    if not _is_real(value):
        raise InputError(owner, f"{start} an array of dtype {value.dtype}.")


def _check_count(owner: str, name: str, value: Any, bounds: AtLeast) -> None:
    start = f"`{name}` must be an integer of at least {bounds.low}, but is"
    check_scalar(owner, start, value)
    if not (isinstance(value, int) or jnp.issubdtype(_dtype(value), np.integer)):
        advice = "Round it with `int(...)`, or divide with `//`."
        raise InputError(owner, f"{start} {value!r}. {advice}")
    if is_traced(value):
        return
    if int(value) < bounds.low:
        raise InputError(owner, f"{start} {value!r}.")
    if int(value) > bounds.at_most:
        raise InputError(
            owner, f"`{name}` must be at most {bounds.at_most}, but is {value}."
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
    advice: str = "",
) -> None:
    """Raises an error unless the number is in the interval. NaN is in none.

    The values of schedules and traced values are not checked.
    """
    if is_traced(value) or callable(value):
        return
    value = np.asarray(value)  # an array's comparison would be traced under `jit`
    is_high_enough = value >= low if includes_low else value > low
    is_low_enough = value <= high if includes_high else value < high
    if not np.all(is_high_enough & is_low_enough):
        left = "(["[includes_low and low > -math.inf]
        right = ")]"[includes_high and high < math.inf]
        raise InputError(
            owner,
            f"`{name}` must be in {left}{low}, {high}{right}, but is {value}."
            f" {advice}".rstrip(),
        )


def check_integer(owner: str, name: str, value: Any, low: int) -> int:
    """`value` as a Python integer; raises unless it is an integer of at least `low`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise InputError(
            owner,
            f"`{name}` must be a Python integer of at least {low}, but is "
            f"{value!r}. It determines the compiled program, so it must be static "
            "under `jax.jit`.",
        )
    return number


def check_returned(owner: object, name: str, value: Any) -> Any:
    """The result of the schedule `name` of `owner`; raises unless it is a number."""
    expected = "a real number or a 0-d array"
    check_scalar(
        owner, f"the schedule `{name}` must return {expected}, but returned", value
    )
    return value


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", np.dtype(object))


def _is_real(value: Any) -> bool:
    """Whether `value` is a real number, or an array of them."""
    kinds = np.floating, np.integer
    is_array = any(jnp.issubdtype(_dtype(value), kind) for kind in kinds)
    return isinstance(value, int | float) or is_array


def check_real_dtype(owner: str, name: str, dtype: Any) -> None:
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
            owner,
            f"`{name}` must be float16, bfloat16, float32 or float64, but is {found}.",
        )


def may_be_model(x: Any) -> bool:
    """Whether `x` has matrices, like a model, and is not of a class for schedules."""
    leaves = () if _has_mark(x) else jtu.tree_leaves(x)
    return any(np.ndim(leaf) > 1 for leaf in leaves if eqx.is_array(leaf))


def check_no_schedule(owner: object, in_any_field: bool = False) -> None:
    """Raises an error if a hyperparameter needs [`eqopt.Scheduled`][].

    Checks the fields that are marked as hyperparameters, or all fields that `waiting`
    checks.
    """
    names = waiting(owner) if in_any_field else hyperparameters(type(owner))
    for name in names:
        value = getattr(owner, name)
        if callable(value):
            kind = "stateful schedule" if _has_state(value) else "schedule"
            raise InputError(
                owner,
                f"`{name}` is a {kind}, which "
                f"{type(owner).__name__} does not evaluate. Wrap the whole optimizer "
                "in `eqopt.Scheduled(optimizer)`, which evaluates all schedules in it.",
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
