"""Extra arguments of `update` and `step`, and errors if one is missing."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._errors import InputError
from .checks import check_scalar


def required_params(params: Any) -> Any:
    """Returns `params`; raises an error if they are missing."""
    if params is None:
        raise InputError(
            "the parameters are needed, but `params` is None. Pass the model as the "
            "third argument: `update(updates, state, model)`."
        )
    return params


def required(extra: Mapping[str, Any], name: str) -> Any:
    """Returns the extra argument `name` of a call; raises an error if it is missing."""
    if extra.get(name) is None:
        raise InputError(
            f"the extra argument `{name}` is needed. Pass it by name: `step(grads, "
            f"state, model, {name}=...)`; chains and wrappers pass it on."
        )
    return extra[name]


def check_number(name: str, value: Any) -> None:
    """Raises an error unless the extra argument `name` is one real number."""
    check_scalar(f"`{name}` must be one real number, but is", value)


def given_norm(extra: Mapping[str, Any]) -> Any:
    """Returns the extra argument `grad_norm`, or `None` if it is not given."""
    found = extra.get("grad_norm")
    if found is not None:
        check_number("grad_norm", found)
    return found


def without_norm(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `extra` for updates that are not the gradients whose norm was given."""
    return {name: x for name, x in extra.items() if name != "grad_norm"}


def with_functions(
    extra: Mapping[str, Any],
    to_model: Callable[[Any], Any],
    of_grads: Callable[[Any], Any],
) -> Mapping[str, Any]:
    """Returns `extra` with functions of the parameters in another form, as one vector.

    `to_model` returns the parameters that the caller's functions take. `of_grads` brings
    the gradients that they return into the other form.
    """
    value_fn, grad_fn = extra.get("value_fn"), extra.get("grad_fn")
    if value_fn is not None:
        extra = {**extra, "value_fn": lambda params: value_fn(to_model(params))}
    if grad_fn is not None:
        # It keeps the signature, which says whether it takes the number of the step.
        @functools.wraps(grad_fn, updated=())
        def grads_of(params, *step):
            return of_grads(grad_fn(to_model(params), *step))

        extra = {**extra, "grad_fn": grads_of}
    return extra
