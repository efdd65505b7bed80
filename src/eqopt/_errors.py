"""The error for what a user passed to a transformation, and the name of its owner.

An error is raised where it is known what was found and what was expected. It names the
class, the argument or the key path, and the fix. Nothing reads its text afterwards.
"""

import contextlib
from collections.abc import Generator


class InputError(ValueError, TypeError):
    """The error for an argument that does not fit. Code may catch either base class.

    **Attributes:**

    - `owners`: the names of the classes or functions that got the argument: the part
        that raised the error first, and the recipe that it belongs to last.
    - `problem`: the argument or key path, what was found, what was expected, and the fix.
    """

    def __init__(self, owner: object, problem: str):
        super().__init__(owner, problem)
        self.owners = [] if owner is None else [name_of(owner)]
        self.problem = problem

    def __str__(self) -> str:
        if not self.owners:
            return self.problem
        part, *recipes = self.owners
        owner = f"{recipes[-1]} ({part})" if recipes else part
        return f"{owner}: {self.problem}"


def name_of(owner: object) -> str:
    """The name of an object's class; a string is a name already."""
    return owner if isinstance(owner, str) else type(owner).__name__


@contextlib.contextmanager
def naming(owner: object) -> Generator[None, None, None]:
    """Gives errors that have no owner yet this one."""
    try:
        yield
    except InputError as error:
        error.owners = error.owners or [name_of(owner)]
        raise


@contextlib.contextmanager
def naming_recipe(owner: object) -> Generator[None, None, None]:
    """Lets errors of the parts of a recipe also name it, such as `Adam (ScaleByAdam)`."""
    try:
        yield
    except InputError as error:
        error.owners.append(name_of(owner))
        raise
