"""Reads annotations, including strings and names that were never imported."""

import dataclasses
import functools
import inspect
import math
import operator
import re
import sys
import types
import typing
from collections import ChainMap, abc
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import numpy as np

from .._types import AtLeast, Interval, RealScalarLike


# What aliases such as `Nonnegative` say in their `Annotated`.
_MARKS = "marked", "mask", "nonnegative", "per_leaf", "exact", "recorded", "state"

# Building blocks of annotations, by name.
_FUNCTIONS = {"Callable", "Schedule", "ScalarOrSchedule"} | {
    f"Abstract{kind}Schedule" for kind in ("", "Stateful")
}
_TREES = {"PyTree", "ArrayTree", "Params", "Mask"}
_NUMBERS = {"float", "int", "Array", "ArrayLike", "ndarray", "Float", "Int"} | {
    *("Inexact", "Integer", "Num", "Real", "Scalar", "ScalarLike", "RealScalarLike")
}


@functools.cache
def kinds(cls: type) -> dict[str, str]:
    """The kind of value that each field of a dataclass or a named tuple declares.

    - `"marked"`, `"mask"`, `"nonnegative"`, `"per_leaf"`, `"exact"`, `"recorded"`: the
        annotation is an alias with this mark, or a union or a dictionary with one.
    - `"class"`: it is `type`, or a union with it.
    - `"number"`: it names a number or an array, and neither a function nor a tree.
    - `"state"`: it is `State`, any container, or a class with other fields.
    - `"own"`: it names a function, which the class calls itself.
    - `"unknown"`: anything else.
    """
    return {name: _kind(annotation) for name, annotation in _annotations(cls).items()}


def _annotations(cls: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass or a named tuple."""
    names = names_in(cls)
    if dataclasses.is_dataclass(cls):
        written = {field.name: field.type for field in dataclasses.fields(cls)}
    else:
        written = getattr(cls, "__annotations__", {})
    return {name: resolved(annotation, names) for name, annotation in written.items()}


class Rule(NamedTuple):
    """What the type of a field says about its value, for `check_fields`."""

    bounds: Interval | AtLeast | None
    is_scalar: bool  # a number, or a 0-d array
    is_static: bool  # a Python number
    takes_functions: bool
    choices: tuple[Any, ...]
    is_closed: bool  # whether only the choices are allowed
    others: tuple[type, ...]  # what is allowed instead, without further checks
    is_dtype: bool
    # Numbers of these Python types are right from `low` to below `high`.
    plain: tuple[type, ...]
    low: float
    high: float


# Fields with these names, and learning rates, have a rule in classes of users, too.
_REAL_DTYPES = (
    *("mu_dtype", "nu_dtype", "accumulator_dtype", "state_dtype", "param_dtype"),
    "ns_dtype",
)
_RATE = Interval(
    0, advice="To ascend, use `eqopt.Chain(eqopt.Scale(-1.0), optimizer)`."
)
_SCALAR, _STATIC = typing.get_args(RealScalarLike), (float, int, np.integer, NoneType)


@functools.cache
def rules(cls: type) -> dict[str, Rule]:
    """The rules for the fields of a dataclass, as far as their types say anything.

    They do for a `RealScalarLike`, a `Literal`, and what `Annotated` gives bounds.
    """
    found = {name: _rule(name, x) for name, x in _annotations(cls).items()}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(name: str, annotation: Any) -> Rule | None:
    parts, marks = _parts(annotation)
    declared = next((x for x in marks if isinstance(x, Interval | AtLeast)), None)
    bounds = _RATE if name == "learning_rate" else declared
    is_scalar = bool(declared) or all(x in parts for x in _SCALAR)
    is_dtype = name in _REAL_DTYPES
    literals = [x for x in parts if typing.get_origin(x) is typing.Literal]
    if not (bounds or is_scalar or is_dtype or literals):
        return None
    others = [
        x for x in parts if isinstance(x, type) and issubclass(x, NoneType | eqx.Module)
    ]
    low, high = _surely_right(bounds)
    return Rule(
        bounds=bounds,
        is_scalar=is_scalar,
        is_static=bool(declared) and all(x in _STATIC for x in parts),
        takes_functions=any(typing.get_origin(x) is abc.Callable for x in parts),
        choices=tuple(choice for x in literals for choice in typing.get_args(x)),
        is_closed=bool(literals) and len(literals) + len(others) == len(parts),
        others=tuple(others),
        is_dtype=is_dtype,
        plain=(int,) if isinstance(bounds, AtLeast) else (float, int) * is_scalar,
        low=low,
        high=high,
    )


def _surely_right(bounds: Interval | AtLeast | None) -> tuple[float, float]:
    if isinstance(bounds, AtLeast):
        return bounds.low, bounds.at_most
    if bounds is None:
        return -math.inf, math.inf
    low = bounds.low if bounds.includes_low else math.nextafter(bounds.low, math.inf)
    return low, bounds.high


def _parts(annotation: Any) -> tuple[list[Any], list[Any]]:
    """The members of a union, and what `Annotated` says about them."""
    if _is_annotated(annotation):
        parts, marks = _parts(annotation.__origin__)
        return parts, [*marks, *annotation.__metadata__]
    if not _is_union(annotation):
        return [annotation], []
    found = [_parts(x) for x in typing.get_args(annotation)]
    return [x for parts, _ in found for x in parts], [x for _, ms in found for x in ms]


def without_bounds(annotation: Any) -> Any:
    """The type alone, as users read it: without the bounds and marks of a number."""
    if _is_annotated(annotation) and "mask" not in annotation.__metadata__:
        return without_bounds(annotation.__origin__)
    if _is_union(annotation):
        parts = map(without_bounds, typing.get_args(annotation))
        return functools.reduce(operator.or_, parts)
    return annotation


def _is_annotated(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Annotated


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def names_in(cls: type) -> Mapping[str, Any]:
    """What names mean in the annotations of a class, and of the classes before it."""
    modules = [sys.modules.get(base.__module__) for base in cls.__mro__]
    return ChainMap(*(vars(module) for module in modules if module))


def resolved(annotation: Any, namespace: Mapping[str, Any]) -> Any:
    """The value of a string annotation, or the string if a name in it is unknown.

    Names that are imported only for type checkers are unknown.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, namespace)  # as `typing.get_type_hints` does
    except Exception:
        return annotation


@functools.cache
def returned_type(fn: Callable) -> type | types.UnionType:
    """The return type that a function declares, or `object` if it declares none."""
    fn = inspect.unwrap(fn)  # its own module knows the names in a string
    found = resolved(fn.__annotations__.get("return", object), fn.__globals__)
    found = type(None) if found is None else found
    return found if isinstance(found, type | types.UnionType) else object


def _has_fields(x: Any) -> bool:
    return dataclasses.is_dataclass(x) or hasattr(x, "_fields")


def _kind(annotation: Any) -> str:
    parts = annotation, *typing.get_args(annotation)
    for part in parts:
        mark = getattr(part, "__metadata__", ("",))[0]
        if mark in _MARKS:
            return mark
    if any(x is type or typing.get_origin(x) is type for x in parts):
        return "class"
    text = annotation if isinstance(annotation, str) else repr(annotation)
    names = set(re.findall(r"\w+", text))
    if isinstance(annotation, str) and names & {"type", "Type"}:
        return "class"
    if names & _FUNCTIONS:
        return "own"
    if names & _NUMBERS and not names & _TREES:
        return "number"
    is_container = typing.get_origin(annotation) in (dict, list, tuple)
    if is_container or any(map(_has_fields, parts)):
        return "state"
    return "unknown"
