"""What a law is: a name, a statement, and a check that raises a `Breach`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ._difference import Difference, of_values
from ._trial import Trial


class Breach(Exception):
    """What was found where, what was expected, and a fix if it is not the law's fix."""

    def __init__(self, problem: str, fix: str = ""):
        super().__init__(problem)
        self.fix = fix


class Law(NamedTuple):
    """One law.

    - `check`: raises a `Breach` if a trial breaks the law.
    - `statement`: the law in a sentence.
    - `fix`: the likely fix.
    """

    check: Callable[[Trial], None]
    statement: str
    fix: str


# By name, in the order of their definitions.
BY_NAME: dict[str, Law] = {}


def law(fix: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Registers a check, whose name and docstring are the name of a law and the law."""

    def register(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert check.__doc__
        name = check.__name__.strip("_")
        BY_NAME[name] = Law(check, " ".join(check.__doc__.split()), fix)
        return check

    return register


def expect(
    difference: Difference | None, what: str, like: str = "", fix: str = ""
) -> None:
    """Raises a `Breach` if there is a difference from what is like something else."""
    if difference is not None:
        raise Breach(f"{what} {difference} {like}".rstrip(), fix)


def expect_same(
    when: str, found: Any, expected: Any, base: Any, like: str, fix: str = ""
) -> None:
    """Raises a `Breach` unless a model and a state are the same, except for rounding.

    `base` is the model before what is compared.
    """
    expect(of_values(found[0], expected[0], base), f"{when} model", like, fix)
    expect(of_values(found[1], expected[1]), f"{when} state", like, fix)
