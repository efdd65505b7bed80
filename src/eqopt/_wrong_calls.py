"""Messages for arguments of wrong types: what they must be, and what they are."""

import inspect
import itertools
import os
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
import numpy as np
from beartype.door import is_bearable
from jaxtyping import Array, ArrayLike, Bool, DTypeLike

from ._jax_internals import is_traced
from ._types import (
    Hyperparameter,
    IntegerLike,
    Key,
    Mask,
    RealScalarLike,
    ScalarOrSchedule,
    Schedule,
    StaticInteger,
)


def wrong_argument(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> str | None:
    """The message for the first argument of a wrong type, by itself; or `None`."""
    try:
        signature = inspect.signature(fn, eval_str=True)
        given = signature.bind_partial(*args, **kwargs).arguments
    except (NameError, TypeError):  # an unknown annotation, or another wrong call
        return None
    kinds = {
        name: x.annotation
        for name, x in signature.parameters.items()
        if x.annotation is not x.empty
    }
    single, values = {}, []
    for name, value in given.items():
        how = signature.parameters[name].kind
        if how is inspect.Parameter.VAR_POSITIONAL:
            values += [(name, x) for x in value]
        elif how is inspect.Parameter.VAR_KEYWORD:
            values += [(name, x) for x in value.values()]
        else:
            single[name] = value
            values.append((name, value))

    def fits(name: str, x: Any) -> bool:
        with jaxtyping.jaxtyped(
            "context"
        ):  # names of axes that others bind do not count
            return is_bearable(x, kinds.get(name, object))

    for name, value in values:
        if fits(name, value):
            continue
        owner = ".".join([*_public(fn.__module__), fn.__qualname__])
        message = f"{owner}: `{name}` {wrong_value(value, kinds[name])}"
        for other, x in single.items():
            if (
                other != name
                and name in single
                and fits(other, value)
                and fits(name, x)
            ):
                names = ", ".join(single)
                return (
                    f"{message} Were `{name}` and `{other}` exchanged? Call "
                    f"`{fn.__name__}({names})`, in this order."
                )
        return message
    return None


def _public(module: str) -> list[str]:
    """The public packages around a module, such as `eqopt` and `tree`."""
    return [*itertools.takewhile(lambda x: not x.startswith("_"), module.split("."))]


def wrong_value(value: Any, annotation: Any) -> str:
    """What a value must be by its annotation, and what it is."""
    kinds = typing.get_args(annotation) or (annotation,)
    if is_traced(value) and {bool, str, int} & {*kinds}:
        return (
            "must be known when the program is compiled, but is traced. Was the "
            "optimizer an argument of `jax.jit`, which traces all of its numbers and "
            "bools? Use `eqx.filter_jit`, or close over the optimizer."
        )
    written = _written(annotation)
    found = (x for kind, x in _EXPECTED if _written(kind) == written)
    expected = next(found, f"of type `{written}`")
    if typing.get_origin(annotation) is typing.Literal:
        expected = f"one of {[*kinds]}"
    elif typing.get_origin(annotation) is Callable:
        expected = "a function"
    if isinstance(value, type):
        name = value.__name__
        return f"must be {expected}, but is the class {name}. Create an instance."
    shown = repr(value) if len(repr(value)) < 60 else "a value"
    return f"must be {expected}, but is {shown} of type {type(value).__name__}."


def _written(annotation: Any) -> str:
    """An annotation without the names of modules, the same in each version of Python."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        text = " | ".join(dict.fromkeys(map(_written, args)))
        return text if annotation == ArrayLike else text.replace(_ARRAYS, "ArrayLike")
    if origin is not Callable and isinstance(origin, type) and args:
        return f"{origin.__name__}[{', '.join(map(_written, args))}]"
    if annotation in (None, types.NoneType, ...):
        return "..." if annotation is ... else "None"
    return re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(annotation))


_ARRAYS = _written(ArrayLike)
_NUMBER = "a real number or a 0-d array"
_EXPECTED = [
    (ScalarOrSchedule, f"{_NUMBER} or a schedule"),
    (Hyperparameter, f"{_NUMBER} or a schedule"),
    (RealScalarLike, _NUMBER),
    (RealScalarLike | None, f"{_NUMBER} or `None`"),
    (RealScalarLike | complex, "a number or a 0-d array"),
    (IntegerLike, "an integer or a 0-d integer array"),
    (IntegerLike | Schedule, "an integer, a 0-d integer array or a schedule"),
    (StaticInteger, "a Python integer"),
    (Key, "a seed or a key of `jax.random.key`"),
    (int | None | np.integer, "a Python integer or `None`"),
    (bool, "`True` or `False`"),
    (bool | np.bool_, "`True` or `False`"),
    (bool | np.bool_ | Bool[Array, ""], "a bool or a 0-d array of bools"),
    (int, "a Python integer"),
    (str, "a string"),
    (str | os.PathLike[str], "a path: a string or a `pathlib.Path`"),
    (DTypeLike, "a dtype"),
    (DTypeLike | None, "a dtype or `None`"),
    (
        Mask | None,  # type: ignore  # of an annotated type
        "a tree of bools, or a function of the parameters that returns one",
    ),
]
