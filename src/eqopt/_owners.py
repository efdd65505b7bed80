"""Whose errors they are: messages name the optimizer that the user wrote.

A recipe is made of parts, which check what they are given. Their messages are of no use
to somebody who has never heard of them, so they name the recipe as well.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


_RECIPES: ContextVar[tuple[str, ...]] = ContextVar("_RECIPES", default=())


@contextlib.contextmanager
def parts_of(optimizer: object) -> Iterator[None]:
    """Within this, parts of `optimizer` are at work."""
    token = _RECIPES.set((*_RECIPES.get(), type(optimizer).__name__))
    try:
        yield
    finally:
        _RECIPES.reset(token)


def recipe() -> str | None:
    """The optimizer whose parts are at work, the outermost if they are several."""
    return next(iter(_RECIPES.get()), None)


def name_of(part: object) -> str:
    """How a message calls a part: `Adam (ScaleByAdam)`, or the part's name alone."""
    name = part if isinstance(part, str) else type(part).__name__
    first, *others = dict.fromkeys((*_RECIPES.get(), name))
    return f"{first} ({', '.join(others)})" if others else first
