"""Parts of the parameters, which a mask or a label chooses.

A part lacks some of what a rule or an optimizer was made for. That is an error only in
the whole model.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar


_sees_part: ContextVar[bool] = ContextVar("_sees_part", default=False)


@contextlib.contextmanager
def seeing_part() -> Generator[None, None, None]:
    """Transformations that are called in it see a part of the parameters."""
    token = _sees_part.set(True)
    try:
        yield
    finally:
        _sees_part.reset(token)


def sees_part() -> bool:
    return _sees_part.get()
