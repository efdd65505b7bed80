"""Extra arguments that nothing reads, because their name is another one."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from ._checks import EXTRAS


# Other names for what eqopt calls `value` and `value_fn`.
_MEANT = {"loss": "value", "loss_value": "value", "loss_fn": "value_fn"}


def check_names(transformation: Any, call: str, extra: Mapping[str, Any]) -> None:
    """Raises a `TypeError` for an extra argument whose name is probably a mistake.

    Extra arguments with other unknown names are for transformations of users. These may
    read any name, so nothing is checked if there may be one in `transformation`.
    """
    for name in extra.keys() - EXTRAS.keys():
        close = difflib.get_close_matches(name, EXTRAS, n=1, cutoff=0.8)
        meant = _MEANT.get(name) or next(iter(close), None)
        if meant is not None and meant not in extra and _is_ours(transformation):
            raise TypeError(
                f"{type(transformation).__name__}.{call}: no part of this optimizer "
                f"reads the extra argument `{name}`. Did you mean `{meant}`, "
                f"{EXTRAS[meant]}? Pass it by that name: "
                f"`opt.{call}(grads, state, model, {meant}={name})`."
            )


def _is_ours(transformation: Any) -> bool:
    """Whether no part or function in it is foreign to eqopt and JAX."""
    for x in _parts(transformation):
        module = x.__module__ if callable(x) else type(x).__module__
        if not f"{module}.".startswith(("eqopt.", "builtins.", "jax", "numpy.")):
            return False
    return True


def _parts(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        x = tuple(x.values())
    if isinstance(x, tuple | list):
        for part in x:
            yield from _parts(part)
        return
    yield x
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        for field in dataclasses.fields(x):
            yield from _parts(getattr(x, field.name, None))
