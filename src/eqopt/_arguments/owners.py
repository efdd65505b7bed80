"""Error messages name the optimizer that the user wrote.

A recipe consists of parts, which check their arguments. Users may not know the parts,
so the messages also name the recipe.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar


_RECIPES: ContextVar[tuple[str, ...]] = ContextVar("_RECIPES", default=())


@contextlib.contextmanager
def parts_of(optimizer: object) -> Generator[None, None, None]:
    """In this context, parts of `optimizer` are running."""
    token = _RECIPES.set((*_RECIPES.get(), type(optimizer).__name__))
    try:
        yield
    finally:
        _RECIPES.reset(token)


def recipe() -> str | None:
    """The optimizer whose parts are running, the outermost if there are several."""
    return next(iter(_RECIPES.get()), None)


def name_of(part: object) -> str:
    """The name of a part in a message: `Adam (ScaleByAdam)`, or only the part's name."""
    name = part if isinstance(part, str) else type(part).__name__
    first, *others = dict.fromkeys((*_RECIPES.get(), name))
    return f"{first} ({', '.join(others)})" if others else first


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


def why_no_hash(owner: object) -> str:
    """The message for a module of which `jax.jit` needs a hash, but which has none."""
    fields = [f"`{name}`" for name, x in vars(owner).items() if not _has_hash(x)]
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
