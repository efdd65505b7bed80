"""The error for what a user passed to a transformation, and the name of its owner.

An error is raised where it is known what was found and what was expected. It names the
class, the argument or the key path, and the fix if there is one. Nothing guesses from its
text afterwards.
"""

import contextlib
import functools
from collections.abc import Callable, Generator
from types import FrameType, TracebackType
from typing import Any


class InputError(ValueError, TypeError):
    """The error for an argument that does not fit. Code may catch either base class.

    **Attributes:**

    - `owners`: the names of the classes or functions that got the argument: the part
        that raised the error first, and the recipe that it belongs to last.
    - `problem`: the argument or key path, what was found, what was expected, and the fix.
    """

    def __init__(self, problem: str):
        super().__init__(problem)
        self.owners: list[str] = []
        self.problem = problem
        self._names_function = False

    def __str__(self) -> str:
        if not self.owners:
            return self.problem
        part, *recipes = self.owners
        owner = f"{recipes[-1]} ({part})" if recipes else part
        return f"{owner}: {self.problem}"


def name_of(owner: object) -> str:
    """The name of an object's class; a string is a name already."""
    return owner if isinstance(owner, str) else type(owner).__name__


class naming(contextlib.ContextDecorator):  # as a statement: `with naming(self):`
    """The border of what users call: an error says whose it is, and where it was called.

    An `InputError` that has no owner yet gets this one: an object of a class, or the name
    of a function. In its traceback, frames of users stay, but not the frames of libraries
    between them.
    """

    def __init__(self, owner: object):
        self.owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            name_error(error, self.owner, is_function=isinstance(self.owner, str))


def name_error(error: BaseException, owner: object, is_function: bool = False) -> None:
    """Does what `naming` does with an error, for calls that are made in each step.

    A function gives its name only until what calls it gives another one.
    """
    trace = error.__traceback__
    if isinstance(error, InputError):
        if not error.owners or error._names_function:
            error.owners, error._names_function = [name_of(owner)], is_function
        error.__traceback__ = _without(trace, _is_of_a_library)
    else:
        error.__traceback__ = _without(trace, _is_a_check)


_LIBRARIES = {"eqopt", "beartype", "contextlib", "jaxtyping", "equinox", "jax"}


def _is_of_a_library(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return _is_a_check(frame) or module.partition(".")[0] in _LIBRARIES


def _is_a_check(frame: FrameType) -> bool:
    """Whether beartype generated the function, to check one of eqopt's."""
    return frame.f_code.co_filename.startswith("<@beartype(eqopt.")


def _without(
    trace: TracebackType | None, is_hidden: Callable[[FrameType], bool]
) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not is_hidden(trace.tb_frame):
            kept.append((trace.tb_frame, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    return functools.reduce(
        lambda rest, x: TracebackType(rest, *x), reversed(kept), None
    )


@contextlib.contextmanager
def noting(note: str, *kinds: type[Exception]) -> Generator[None, None, None]:
    """Adds a note to errors of these kinds, which are not eqopt's."""
    try:
        yield
    except kinds as error:
        error.add_note(note)
        raise


@contextlib.contextmanager
def naming_recipe(owner: object) -> Generator[None, None, None]:
    """Lets errors of the parts of a recipe also name it, such as `Adam (ScaleByAdam)`."""
    try:
        yield
    except InputError as error:
        error.owners.append(name_of(owner))
        raise
