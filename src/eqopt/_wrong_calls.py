"""Messages for arguments of wrong types: what they must be, and what they are."""

import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import jaxtyping
from beartype.door import is_bearable
from jaxtyping import ArrayLike

from ._errors import InputError
from ._jax_internals import is_traced
from ._types import IntegerLike, RealScalarLike, ScalarOrSchedule, StaticInteger


def wrong_argument(
    fn: Callable, args: tuple, kwargs: dict[str, Any]
) -> Exception | None:
    """Returns the error for the first argument of a wrong type, or for their shapes.

    It is `None` if all arguments fit: then something inside `fn` does not.
    """
    signature = inspect.signature(fn, eval_str=True)
    owner = fn.__qualname__.removesuffix(".__init__")
    if owner == fn.__qualname__:
        owner = ".".join([*_public(fn.__module__), owner])
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        return InputError(owner, f"{error}.")
    rows = [
        (name, x, signature.parameters[name].annotation)
        for name, value in given.items()
        for x in _values(signature.parameters[name].kind, value)
        if signature.parameters[name].annotation is not inspect.Parameter.empty
    ]
    for name, x, annotation in rows:
        with jaxtyping.jaxtyped("context"):
            if not is_bearable(x, annotation):
                return InputError(owner, wrong_value(name, x, annotation))
    with jaxtyping.jaxtyped("context"):  # the sizes of axes must be the same in all
        if all(is_bearable(x, annotation) for _, x, annotation in rows):
            return None
    shapes = [(name, x.shape) for name, x, _ in rows if hasattr(x, "shape")]
    shown = ", ".join(f"`{name}` has {[*shape]}" for name, shape in shapes)
    return InputError(owner, f"shapes do not fit: {shown}.")


def _values(kind: Any, value: Any) -> Iterable[Any]:
    """The single values of an argument such as `*args` or `**kwargs`."""
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return value
    return value.values() if kind is inspect.Parameter.VAR_KEYWORD else (value,)


def _public(module: str) -> list[str]:
    """The public packages around a module, such as `eqopt` and `tree`."""
    return [*itertools.takewhile(lambda x: not x.startswith("_"), module.split("."))]


def wrong_value(name: str, value: Any, annotation: Any) -> str:
    """What an argument must be by its annotation, and what it is."""
    kinds = typing.get_args(annotation) or (annotation,)
    if is_traced(value) and {bool, str, int} & {*kinds}:
        return (
            f"`{name}` determines the compiled program, so it must be a Python value, "
            "but is traced. `jax.jit` traces all numbers and bools of an optimizer: use "
            "`eqx.filter_jit`, or close over it."
        )
    written = _written(annotation)
    found = (text for kind, text in _EXPECTED if _written(kind) == written)
    expected = next(found, f"of type `{written}`")
    if typing.get_origin(annotation) is typing.Literal:
        expected = f"one of {[*kinds]}"
    return f"`{name}` must be {expected}, but is {described(value)}"


def described(value: Any) -> str:
    """Describes a value of a wrong type, and says how to fix it where that is known."""
    if isinstance(value, type):
        return f"the class {value.__name__}. Create an instance of it."
    module = getattr(value, "__module__", None) or type(value).__module__
    if module.partition(".")[0] == "optax":
        name = getattr(value, "__name__", type(value).__name__)
        return f"`{name}` of Optax. Wrap it: `eqopt.interop.optax.from_optax(tx)`."
    shown = repr(value)
    kind = f"of type {type(value).__name__}."
    return f"{shown} {kind}" if len(shown) < 60 else f"a value {kind}"


def _written(annotation: Any) -> str:
    """An annotation without the names of modules, the same in each version of Python."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if annotation == ArrayLike:
            return "ArrayLike"
        return " | ".join(dict.fromkeys(map(_written, args)))
    if origin is typing.Annotated:
        return _written(args[0])
    if origin is not Callable and isinstance(origin, type) and args:
        return f"{origin.__name__}[{', '.join(map(_written, args))}]"
    if annotation in (None, types.NoneType, ...):
        return "..." if annotation is ... else "None"
    return re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(annotation))


_NUMBER = "a real number or a 0-d array"
_EXPECTED = [
    (ScalarOrSchedule, f"{_NUMBER} or a schedule"),
    (RealScalarLike, _NUMBER),
    (IntegerLike, "an integer or a 0-d integer array"),
    (StaticInteger, "a Python integer"),
    (bool, "`True` or `False`"),
    (int, "a Python integer"),
    (str, "a string"),
]
