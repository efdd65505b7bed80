"""Errors that say where in a tree they are."""

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

from .._errors import InputError


class Misplaced(ValueError):
    """An error with its path, and its text."""


@contextlib.contextmanager
def at(step: str) -> Generator[None, None, None]:
    """Puts a step of a path before the path of an error inside."""
    try:
        yield
    except (TypeError, ValueError) as error:
        is_placed = isinstance(error, Misplaced)
        place, problem = error.args if is_placed else ("", str(error))
        raise Misplaced(step + place, problem) from None


@contextlib.contextmanager
def as_input_error(owner: str) -> Generator[None, None, None]:
    """Turns an error inside into an `InputError` that begins with its path."""
    try:
        with at(""):
            yield
    except Misplaced as error:
        place, problem = error.args
        end = "" if problem.endswith((".", "?")) else "."
        start = f"at `{place}`: " * bool(place)
        raise InputError(owner, f"{start}{problem}{end}") from None


def each(
    items: Iterable[tuple[Any, Any]], convert: Callable[[Any], Any]
) -> dict[Any, Any]:
    """Converts values by their keys, or by their positions in a list."""
    found: dict[Any, Any] = {}
    for key, x in items:
        with at(f"[{key}]" if isinstance(key, int) else f".{key}"):
            found[key] = convert(x)
    return found
