"""Explanations of all arguments, as `help` has them."""

import ast
from collections.abc import Iterator
from typing import Any

import griffe

from eqopt._explanations import completed


class CompleteArguments(griffe.Extension):
    """Fills in what the docstring of a class leaves to other classes.

    To stand behind `EquinoxModules`, which says what the arguments are.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        found = {
            cls.name: cls for cls in _classes(pkg) if _docstring(cls) and _init(cls)
        }
        written = {name: _docstring(cls) for name, cls in found.items()}
        for name, cls in found.items():
            parameters = [*_init(cls).parameters][1:]
            defaults = {p.name: _value(p.default) for p in parameters}
            cls.docstring.value = completed(
                written[name],
                defaults,
                lambda public: written[public.rpartition(".")[2]],
            )


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _classes(member)


def _docstring(cls: griffe.Class) -> str:
    return cls.docstring.value if cls.docstring is not None else ""


def _init(cls: griffe.Class) -> griffe.Function | None:
    found = cls.members.get("__init__")
    return found if isinstance(found, griffe.Function) else None


def _value(default: str | griffe.Expr | None) -> Any:
    """The value of a default that is written as a number, a bool or a string."""
    try:
        return ast.literal_eval(str(default))
    except (SyntaxError, ValueError):
        return None
