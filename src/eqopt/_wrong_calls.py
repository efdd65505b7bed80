"""Messages for arguments of wrong types: what they must be, and what they are."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import jaxtyping
import numpy as np
from beartype.door import is_bearable
from jaxtyping import ArrayLike, DTypeLike

from ._errors import InputError
from ._jax_internals import is_traced
from ._types import IntegerLike, Key, Mask, RealScalarLike, Schedule, StaticInteger


def wrong_argument(
    fn: Callable, args: tuple, kwargs: dict[str, Any]
) -> Exception | None:
    """Returns the error for the first argument of a wrong type, or for their shapes.

    It is `None` if all arguments fit: then something inside `fn` does not.
    """
    signature = inspect.signature(fn, eval_str=True)
    rows = [
        (name, x, signature.parameters[name].annotation)
        for name, value in signature.bind_partial(*args, **kwargs).arguments.items()
        for x in _values(signature.parameters[name].kind, value)
        if signature.parameters[name].annotation is not inspect.Parameter.empty
    ]
    for name, x, annotation in rows:
        with jaxtyping.jaxtyped("context"):
            if not is_bearable(x, annotation):
                return InputError(wrong_value(name, x, annotation))
    with jaxtyping.jaxtyped("context"):  # the sizes of axes must be the same in all
        if all(is_bearable(x, annotation) for _, x, annotation in rows):
            return None
    shapes = [(name, x.shape) for name, x, _ in rows if hasattr(x, "shape")]
    shown = ", ".join(f"`{name}` has {[*shape]}" for name, shape in shapes)
    return InputError(f"shapes do not fit: {shown}.")


def _values(kind: Any, value: Any) -> Iterable[Any]:
    """The single values of an argument such as `*args` or `**kwargs`."""
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return value
    return value.values() if kind is inspect.Parameter.VAR_KEYWORD else (value,)


def wrong_value(name: str, value: Any, annotation: Any) -> str:
    """What an argument must be by its annotation, and what it is."""
    kinds = typing.get_args(annotation) or (annotation,)
    if is_traced(value) and {bool, str, int} & {*kinds}:
        return (
            f"`{name}` determines the compiled program, so it must be a Python value, "
            "but is traced. `jax.jit` traces all numbers and bools of an optimizer: use "
            "`eqx.filter_jit`, or close over it."
        )
    form = written(annotation)
    expected = _EXPECTED.get(form, f"of type `{form}`")
    if typing.get_origin(annotation) is typing.Literal:
        expected = f"one of {[*kinds]}"
    return f"`{name}` must be {expected}, but is {described(value)}"


_EXPECTED = {
    "float | Array | Schedule": "a real number or a 0-d array or a schedule",
    "float | Array": "a real number or a 0-d array",
    "int | Array": "an integer or a 0-d integer array",
    "bool": "`True` or `False`",
    "int": "a Python integer",
    "str": "a string",
}


def described(value: Any) -> str:
    """Describes a value of a wrong type, and says how to fix it where that is known."""
    if isinstance(value, type):
        return f"the class {value.__name__}. Create an instance of it."
    module = getattr(value, "__module__", None) or type(value).__module__
    if module.partition(".")[0] == "optax":
        name = getattr(value, "__name__", type(value).__name__)
        return f"`{name}` of Optax. Wrap it: `eqopt.interop.optax.from_optax(tx)`."
    if hasattr(value, "dtype") and np.ndim(value) > 0:
        return f"an array of shape {value.shape} and dtype {value.dtype}."
    shown = repr(value)
    kind = f"of type {type(value).__name__}."
    return f"{shown} {kind}" if len(shown) < 60 else f"a value {kind}"


def written(annotation: Any) -> str:
    """An annotation as a user reads it: short names, and no types of NumPy's numbers."""
    if isinstance(annotation, str):
        return annotation
    for alias, name in _ALIASES:
        if annotation == alias:
            return name
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return written(args[0])
    if origin in (typing.Union, types.UnionType):
        rest, names = [*args], []
        for alias, name in _ALIASES:
            members = typing.get_args(alias)
            if members and all(x in rest for x in members):
                rest = [x for x in rest if x not in members]
                names.append(name)
        return " | ".join(dict.fromkeys([*names, *map(written, rest)]))
    if origin is not Callable and isinstance(origin, type) and args:
        return f"{origin.__name__}[{', '.join(map(written, args))}]"
    if annotation in (None, types.NoneType, ...):
        return "..." if annotation is ... else "None"
    return re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(annotation))


# A union stands before any other union whose members it contains.
_ALIASES = [
    (Mask, "Mask"),
    (ArrayLike, "ArrayLike"),
    (Key, "int | Array"),
    (IntegerLike, "int | Array"),
    (RealScalarLike, "float | Array"),
    (StaticInteger, "int"),
    (bool | np.bool_, "bool"),
    (DTypeLike, "DTypeLike"),
    (Schedule, "Schedule"),
]
