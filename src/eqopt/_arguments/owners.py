"""Error messages name the optimizer that the user wrote.

A recipe consists of parts, which check their arguments. Users may not know the parts,
so the messages also name the recipe.
"""

import contextlib
import dataclasses
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def naming(owner: str) -> Generator[None, None, None]:
    """Errors of an equation name `owner`, the function that applies it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name_owner(error, owner)
        raise


def name_owner(error: Exception, owner: str) -> None:
    """Makes a message that begins with the name of an equation begin with `owner`."""
    name = f"{getattr(error, '_equation', '')}: "
    if error.args and str(error.args[0]).startswith(name):
        error.args = (f"{owner}: {error.args[0][len(name) :]}",)


def name_of(part: object) -> str:
    """The name of a part in a message."""
    return part if isinstance(part, str) else type(part).__name__


def name_error(owner: object, error: Exception) -> None:
    """Makes an error during the creation of a part name its owner.

    A part's own check names the part, and the owner's name replaces it. Other errors
    keep their text, because their class may need other arguments.
    """
    name = type(owner).__name__
    if type(error) in (TypeError, ValueError) and len(error.args) == 1:
        part, colon, message = str(error).partition(": ")
        is_named = colon and part.isidentifier()
        error.args = (f"{name}: {message if is_named else error}",)
    else:
        error.add_note(f"This is an error in a part of `{name}`.")


def why_no_hash(owner: Any) -> str:
    """The message for a module of which `jax.jit` needs a hash, but which has none."""
    names = [x.name for x in dataclasses.fields(owner)]
    fields = [f"`{name}`" for name in names if not _has_hash(getattr(owner, name))]
    return (
        f"{type(owner).__name__} has no hash, which `jax.jit` needs, because there is "
        f"an array, a list or a dictionary in {' and '.join(fields)}. Use "
        "`eqx.filter_jit(opt.step)`, or close over the optimizer: `jax.jit(lambda "
        "params: opt.init(params), out_shardings=...)`, and the same for `opt.step`."
    )


def _has_hash(x: object) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
