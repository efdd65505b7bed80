"""Run-time type checks of what users call: public functions, constructors and methods.

beartype checks the types; jaxtyping checks the shapes and writes the messages. Functions
are checked from the moment a user gets one from a package (`_lazy.py`), and classes from
the start (`_arguments/construction.py`). What the library calls itself is not checked.
`JAXTYPING_DISABLE=1` in the environment turns the checks off.
"""

import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation

from ._errors import name_error


if TYPE_CHECKING:
    _Function = TypeVar("_Function", bound=Callable)

    def no_type_check(fn: _Function) -> _Function:
        """Excludes `fn` from run-time checks: it is called at least once per leaf."""
        return fn

else:
    from typing import no_type_check as no_type_check


def checked(fn: Callable, owner: str | None = None) -> Callable:
    """A function with checked arguments and result; its errors name `owner`.

    Without an owner, `fn` is a method, whose errors name the class of its object.
    """
    checks = None

    @functools.wraps(fn)
    def check(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checks
        try:
            if jaxtyping.config.jaxtyping_disable:
                return fn(*args, **kwargs)
            if checks is None:
                checks = beartype(fn)  # takes a millisecond: few are ever called
            with jaxtyping.jaxtyped("context"):
                return checks(*args, **kwargs)
        except BeartypeCallHintParamViolation as error:
            from ._wrong_calls import wrong_argument  # imported only for an error

            wrong = wrong_argument(fn, args, kwargs) or error
            name_error(wrong, args[0] if owner is None else owner)
            raise wrong from None
        except Exception as error:
            # A function gives way to the function that calls it, a method does not.
            whose = args[0] if owner is None else owner
            name_error(error, whose, is_function=owner is not None)
            raise

    setattr(check, "_is_checked", True)  # noqa: B010
    return check


def needs_check(fn: Any) -> bool:
    """Whether `fn` is an annotated function that neither has nor excludes checks.

    The annotations of a decorated function are about the function inside, which the
    decorator has to check.
    """
    return (
        isinstance(fn, FunctionType)
        and bool(fn.__annotations__)
        and not hasattr(fn, "_is_checked")
        and not hasattr(fn, "__wrapped__")
        and not hasattr(fn, "__no_type_check__")
    )


# Methods that take trees, whose calls are checked by the transformation itself.
_PROTOCOL = "init", "update", "step", "leafwise", "matrixwise", "handle"


def checked_methods(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The namespace of a class, with checks of its public methods."""

    def is_public(name, x):
        is_private = name.startswith("_") and not name.endswith("__")
        # The default of a field is no method, even if it is a function.
        is_method = x.__qualname__ == f"{namespace['__qualname__']}.{name}"
        return is_method and not is_private and name not in _PROTOCOL

    return {
        name: checked(x) if needs_check(x) and is_public(name, x) else x
        for name, x in namespace.items()
    }
