"""Reads annotations, including strings and names that were never imported."""

import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any


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
    names = names_in(cls)
    if dataclasses.is_dataclass(cls):
        types = {field.name: field.type for field in dataclasses.fields(cls)}
    else:
        types = getattr(cls, "__annotations__", {})
    return {name: _kind(resolved(found, names)) for name, found in types.items()}


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
