"""Extra arguments: those that a transformation needs, and those that nothing reads."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from .owners import name_of


# The extra arguments of `update` and `step` that transformations read.
EXTRAS = {
    "grad": "the gradient at the parameters, before any transformation",
    "grad_fn": "the gradients as a function of the parameters",
    "previous_grad": "the gradients of the previous parameters on the batch of this step",
    "sample_size": "the number of gradients whose mean is passed as the updates",
    "sum_sq_diff_grads": "the sums of their squared differences from that mean",
    "value": "the loss at the parameters, one real number",
    "value_fn": "the loss as a function of the parameters",
    "weight": "the weight of the gradients in a mean, such as the number of examples",
}

# Other names for what eqopt calls `value` and `value_fn`.
_MEANT = {"loss": "value", "loss_value": "value", "loss_fn": "value_fn"}


def required_params(owner: str, params: Any) -> Any:
    """`params`; raises a `ValueError` if they are missing."""
    if params is None:
        raise ValueError(
            f"{name_of(owner)} needs the parameters, but `params` is None. Pass the "
            "model as the third argument: `update(updates, state, model)`."
        )
    return params


def required(owner: object, extra: Mapping[str, Any], name: str) -> Any:
    """The extra argument `name` of `update`; raises a `ValueError` if it is missing."""
    if extra.get(name) is None:
        raise ValueError(
            f"{name_of(owner)} needs the extra argument `{name}`, {EXTRAS[name]}. "
            f"Pass it by name: `step(grads, state, model, {name}={name})`; chains and "
            "wrappers pass it on."
        )
    return extra[name]


def required_value(owner: object, extra: Mapping[str, Any]) -> Any:
    """The extra argument `value`; raises a `ValueError` unless it is one real number."""
    value = required(owner, extra, "value")
    is_real = not jnp.issubdtype(jnp.result_type(value), jnp.complexfloating)
    if np.ndim(value) != 0 or not is_real:
        raise ValueError(
            f"{name_of(owner)}: `value` must be {EXTRAS['value']}, but has shape "
            f"{np.shape(value)} and dtype {jnp.result_type(value)}. Take the mean of "
            "the losses of the batch."
        )
    return value


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
