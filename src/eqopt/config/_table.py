"""What a name in plain data stands for: a closed table, and what users add to it."""

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx

from .._errors import InputError
from .._names import GONE, meant, public_names


# The rooms that optimizers are made from. Transformations are in `eqopt` itself.
_ROOMS = {
    *("", "aggregating", "compression", "groups", "projections"),
    *("schedules", "storage", "tree"),
}
_REGISTERED: dict[str, Any] = {}

Named = TypeVar("Named", bound=Callable[..., Any])


def register(named: Named, name: str | None = None) -> Named:
    """Gives your own class or function a name in plain data.

    A name in plain data is looked up in the public names of eqopt, in the layers of
    Equinox, and in what you register. Nothing is imported by a name. So register in
    the program that calls [`eqopt.config.dump`][] and [`eqopt.config.load`][].

    !!! example

        ```python
        @eqopt.config.register
        def is_matrix(params):
            return jax.tree.map(lambda p: p.ndim >= 2, params)

        opt = eqopt.AdamW(1e-3, mask=is_matrix)
        data = eqopt.config.dump(opt)
        assert data["mask"] == {"function": "is_matrix"}
        assert eqopt.config.load(data) == opt
        ```

    **Arguments:**

    - `named`: a transformation, schedule, storage or other dataclass whose constructor
        takes its fields by name; a function, such as a mask, a schedule or a projection;
        or a class of layers, for [`eqopt.groups.module`][].
    - `name`: the name in plain data. Defaults to `named.__name__`.

    **Returns:**

    `named`, so it may be a decorator.

    **Raises:**

    A `ValueError` if the name is taken: by eqopt, or by something else that you
    registered. You may define the same function or class again, as in a notebook.
    """
    name = named.__name__ if name is None else name
    if name in _names() or _origin(_REGISTERED.get(name, named)) != _origin(named):
        of = "eqopt" if name in _names() else "other code that registered it"
        raise InputError(
            "eqopt.config.register",
            f"the name {name!r} belongs to {of}. Pass another `name`.",
        )
    _REGISTERED[name] = named
    return named


def _origin(named: Any) -> tuple[str, str]:
    return named.__module__, named.__qualname__


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(x for x in public_names() if x.rpartition(".")[0] in _ROOMS)


def named_by(name: str) -> Any:
    """What a name stands for."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _names():
        root = importlib.import_module("eqopt")
        return functools.reduce(getattr, name.split("."), root)
    raise ValueError(f"there is no {name!r}. {_advice(str(name))}")


def _advice(name: str) -> str:
    room, _, last = name.rpartition(".")
    found = [x for x in meant(room, last)[0] if x in _names()]
    found = found or difflib.get_close_matches(name, [*_REGISTERED, *_names()], n=3)
    if found:
        return f"Did you mean {' or '.join(f'`{x}`' for x in found)}?"
    register = "Name your own class or function with `eqopt.config.register`."
    return GONE.get(last, register)


def name_of(x: Any) -> str | None:
    """The name in plain data of a class or a function, or `None` if it has none."""
    for name, named in _REGISTERED.items():
        if named is x:
            return name
    own = getattr(x, "__name__", "")
    for name in _names():
        if name.rpartition(".")[2] == own and named_by(name) is x:
            return name
    return None


def layer(name: str) -> type:
    """The class of a name for `eqopt.groups.module`."""
    known = layers()
    if name not in known:
        near = difflib.get_close_matches(name, known) or ["eqx.nn.LayerNorm"]
        advice = f"Did you mean `{near[0]}`? Or register your own layers"
        raise ValueError(f"there is no layer {name!r}. {advice}")
    return known[name]


def layers() -> dict[str, type]:
    """The classes for `eqopt.groups.module` by their names."""
    named = {f"eqx.nn.{name}": getattr(eqx.nn, name) for name in dir(eqx.nn)}
    return {name: x for name, x in (named | _REGISTERED).items() if isinstance(x, type)}


def parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a class or a function, which are the keys in plain data.

    Some take a dictionary, and keep its keys in a field `names`. Lists keep their order
    in all files, so plain data have a list for each of the two.
    """
    found = dict(inspect.signature(fn).parameters)
    if takes_names(fn):
        found["names"] = inspect.Parameter("names", inspect.Parameter.KEYWORD_ONLY)
    return found


def takes_names(fn: Callable[..., Any]) -> bool:
    """Whether the first argument of `fn` is a dictionary with names of its values."""
    fields = getattr(fn, "__dataclass_fields__", {})
    has_field = "names" in fields and "names" not in inspect.signature(fn).parameters
    return has_field or fn is named_by("groups.label")
