"""Run-time type checks, made when a function is called for the first time.

beartype takes a millisecond or more to make the checks of one function, and a program
calls a few of the thousand functions that it imports. So `from eqopt import *` takes 0.6
seconds instead of 2.2.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from beartype import beartype


if TYPE_CHECKING:
    _Function = TypeVar("_Function", bound=Callable)

    def no_type_check(fn: _Function) -> _Function:
        """Leaves `fn` to static checks: it is called once per leaf, or more often."""
        return fn

else:
    from typing import no_type_check as no_type_check


def when_called(fn: Callable) -> Callable:
    """`fn`, checked by beartype; for `jaxtyping.jaxtyped`."""
    checked = None

    @functools.wraps(fn)
    def check(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = beartype(fn)
        return checked(*args, **kwargs)

    return check
