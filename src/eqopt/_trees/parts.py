"""Parts of the parameters, which a mask or a label chooses.

A part lacks some of what a rule or an optimizer was made for. That is an error only in
the whole model.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar


_sees_part: ContextVar[bool] = ContextVar("_sees_part", default=False)


@contextlib.contextmanager
def seeing_part(is_part: bool = True) -> Generator[None, None, None]:
    """What is called in it sees a part of the parameters, if this is one."""
    token = _sees_part.set(is_part or sees_part())
    try:
        yield
    finally:
        _sees_part.reset(token)


def sees_part() -> bool:
    return _sees_part.get()
