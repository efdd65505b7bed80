"""Reads the annotations of fields, also those that are strings."""

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections import ChainMap, abc
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jaxtyping
import numpy as np

from .._types import AtLeast, Interval, RealScalarLike


#
# What a field holds
#

# What aliases such as `Nonnegative` say in their `Annotated`.
_MARKS = "marked", "mask", "nonnegative", "per_leaf", "exact", "recorded", "state"

_NUMBERS = float, int, jax.Array, np.ndarray
_ARRAY_TYPE, _TREE_TYPE = type(jaxtyping.AbstractArray), type(jaxtyping.PyTree)


@functools.cache
def kinds(cls: type) -> dict[str, str]:
    """The kind of value that each field of a dataclass or a named tuple declares.

    - `"marked"`, `"mask"`, `"nonnegative"`, `"per_leaf"`, `"exact"`, `"recorded"`: the
        annotation has an alias with this mark.
    - `"class"`: it has `type`.
    - `"own"`: it has a function, which the class calls itself.
    - `"number"`: it has a number or an array, and no tree.
    - `"state"`: it has `State`, any container, or a class with other fields.
    - `"unknown"`: anything else.
    """
    return {name: _kind(annotation) for name, annotation in _annotations(cls).items()}


def _kind(annotation: Any) -> str:
    found = [*_everything_in(annotation)]
    origins = [typing.get_origin(x) or x for x in found]
    marks = [x for x in found if isinstance(x, str) and x in _MARKS]
    if marks:
        return marks[0]
    if type in origins:
        return "class"
    if any(x is abc.Callable or hasattr(x, "is_schedule") for x in origins):
        return "own"
    has_number = any(x in _NUMBERS or isinstance(x, _ARRAY_TYPE) for x in found)
    # Optax's trees are unions of numbers with iterables and mappings of trees.
    is_tree = any(x in (abc.Iterable, abc.Mapping) for x in origins)
    if has_number and not is_tree and not any(isinstance(x, _TREE_TYPE) for x in found):
        return "number"
    is_container = typing.get_origin(annotation) in (dict, list, tuple)
    has_fields = any(
        dataclasses.is_dataclass(x) or hasattr(x, "_fields") for x in found
    )
    return "state" if is_container or has_fields else "unknown"


def _everything_in(annotation: Any) -> Iterator[Any]:
    """An annotation, and what it is made of: types, and the marks of `Annotated`."""
    yield annotation
    if typing.get_origin(annotation) not in (Literal, abc.Callable):
        for x in typing.get_args(annotation):
            yield from _everything_in(x)


#
# What the constructor checks
#


class Rule(NamedTuple):
    """What the type of a field says about its value, for `check_fields`."""

    bounds: Interval | AtLeast | None
    is_scalar: bool  # a number, or a 0-d array
    is_static: bool  # a Python number
    takes_functions: bool
    choices: tuple[Any, ...]
    others: tuple[type, ...]  # what is allowed instead, without further checks
    is_closed: bool  # whether nothing is allowed except the choices and `others`
    is_dtype: bool
    plain: tuple[type, ...]  # Python's types of numbers that may be within the bounds


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

    They do for a `RealScalarLike`, a `Literal`, a module of eqopt such as
    `AbstractTransformation`, and what `Annotated` gives bounds.
    """
    found = {name: _rule(name, x) for name, x in _annotations(cls).items()}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(name: str, annotation: Any) -> Rule | None:
    parts, marks = parts_of(annotation)
    declared = next((x for x in marks if isinstance(x, Interval | AtLeast)), None)
    bounds = _RATE if name == "learning_rate" else declared
    is_scalar = bool(declared) or all(x in parts for x in _SCALAR)
    is_dtype = name in _REAL_DTYPES
    literals = [x for x in parts if typing.get_origin(x) is Literal]
    is_other = lambda x: isinstance(x, type) and issubclass(x, NoneType | eqx.Module)
    others = [*filter(is_other, parts)]
    has_choice = bool(literals) or any(map(_is_of_eqopt, others))
    if not (bounds or is_scalar or is_dtype or has_choice):
        return None
    return Rule(
        bounds=bounds,
        is_scalar=is_scalar,
        is_static=bool(declared) and all(x in _STATIC for x in parts),
        takes_functions=any(typing.get_origin(x) is abc.Callable for x in parts),
        choices=tuple(choice for x in literals for choice in typing.get_args(x)),
        others=tuple(others),
        is_closed=has_choice and len(literals) + len(others) == len(parts),
        is_dtype=is_dtype,
        plain=(int,) if isinstance(bounds, AtLeast) else (float, int) * is_scalar,
    )


def _is_of_eqopt(cls: type) -> bool:
    return any(base.__module__.startswith("eqopt.") for base in cls.__mro__)


def parts_of(annotation: Any) -> tuple[list[Any], list[Any]]:
    """The members of a union, and what `Annotated` says about them."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        parts, marks = parts_of(annotation.__origin__)
        return parts, [*marks, *annotation.__metadata__]
    if origin not in (typing.Union, types.UnionType):
        return [annotation], []
    found = [parts_of(x) for x in typing.get_args(annotation)]
    return [x for parts, _ in found for x in parts], [x for _, ms in found for x in ms]


#
# Annotations that are strings
#


def _annotations(cls: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass or a named tuple."""
    modules = [sys.modules.get(base.__module__) for base in cls.__mro__]
    # Often, only type checkers import what the last two have.
    modules += [jaxtyping, typing]
    names = ChainMap(*(vars(module) for module in modules if module))
    if dataclasses.is_dataclass(cls):
        written = {field.name: field.type for field in dataclasses.fields(cls)}
    else:
        written = getattr(cls, "__annotations__", {})
    return {name: _resolved(annotation, names) for name, annotation in written.items()}


@functools.cache
def returned_type(fn: Callable) -> type | types.UnionType:
    """The return type that a function declares, or `object` if it declares none."""
    fn = inspect.unwrap(fn)  # its own module knows the names in a string
    found = _resolved(fn.__annotations__.get("return", object), fn.__globals__)
    found = NoneType if found is None else found
    return found if isinstance(found, type | types.UnionType) else object


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The value of a string; the string itself if only a type checker knows a name."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, names)
    except Exception:
        return annotation
