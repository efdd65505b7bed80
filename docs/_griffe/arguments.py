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
        explained = [
            (cls, cls.docstring, init)
            for cls in _classes(pkg)
            if cls.docstring is not None
            and isinstance(init := cls.members.get("__init__"), griffe.Function)
        ]
        written = {cls.name: docstring.value for cls, docstring, _ in explained}
        docstring_of = lambda public: written[public.rpartition(".")[2]]
        for cls, docstring, init in explained:
            parameters = [*init.parameters][1:]
            defaults = {p.name: _value(p.default) for p in parameters}
            docstring.value = completed(written[cls.name], defaults, docstring_of)


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _classes(member)


def _value(default: str | griffe.Expr | None) -> Any:
    """The value of a default that is written as a number, a bool or a string."""
    try:
        return ast.literal_eval(str(default))
    except (SyntaxError, ValueError):
        return None
