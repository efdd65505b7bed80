"""Recognises an optimizer, its state or a path that is passed instead of another."""

import os
from typing import Any


def is_optimizer(x: Any) -> bool:
    return hasattr(x, "_route") and not isinstance(x, type)


def is_state(x: Any) -> bool:
    """Whether `x` is the whole state of a transformation of eqopt, that is not `None`."""
    if isinstance(x, tuple | list) and type(x).__name__ in ("tuple", "list"):
        return any(map(is_state, x)) and all(y is None or is_state(y) for y in x)
    return _is_ours(type(x)) and type(x).__name__.endswith("State")


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "eqopt"


def check_is_state(owner: str, name: str, x: Any) -> None:
    """Raises a `TypeError` if `x` is an optimizer, a model or a path instead of a state.

    A state of a user may be of any class, but it is no function.
    """
    if is_optimizer(x) or callable(x) or isinstance(x, str | os.PathLike):
        raise TypeError(
            f"{owner}: `{name}` must be the state of an optimizer, but is of type "
            f"`{type(x).__name__}`. Pass what `init` or the last `step` returned: "
            "`state = opt.init(model)`."
        )


_CALLS = "The usual calls are `opt.init(model)` and `opt.step(grads, state, model)`."


def check_is_no_state(owner: str, name: str, x: Any, call: str = _CALLS) -> None:
    """Raises a `TypeError` if `x` is the state of an optimizer instead of a model."""
    if is_state(x):
        raise TypeError(
            f"{owner}: `{name}` must be the model, but is the state of an optimizer, of "
            f"type `{type(x).__name__}`. Were two arguments exchanged? {call}"
        )


def check_is_tree(owner: str, name: str, x: Any, has_arrays: bool) -> None:
    """Raises a `TypeError` if `x` is a path, or an optimizer without arrays.

    (Hyperparameters can be arrays, and derivatives with respect to them are a tree.)
    """
    if isinstance(x, str | os.PathLike):
        found = f"the path or string {str(x)!r}"
    elif is_optimizer(x) and not has_arrays:
        found = f"an optimizer, of type `{type(x).__name__}`"
    else:
        return
    raise TypeError(
        f"{owner}: `{name}` must be a tree with arrays, but is {found}. Pass the model, "
        "its gradients or the state instead."
    )
