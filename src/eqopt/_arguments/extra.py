"""Extra arguments of `update` and `step`, and errors if one is missing."""

import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .owners import name_of


# The extra arguments of `update` and `step` that transformations read.
EXTRAS = {
    "grad": "the gradient at the parameters, before any transformation",
    "grad_fn": "the gradients as a function of the parameters",
    "grad_norm": "the global norm of the gradients, one real number",
    "max_logits": "the largest attention logits of each head",
    "previous_grad": "the gradients of the previous parameters on the batch of this step",
    "sample_size": "the number of gradients whose mean is passed as the updates",
    "sum_sq_diff_grads": "the sums of their squared differences from that mean",
    "value": "the loss at the parameters, one real number",
    "value_fn": "the loss as a function of the parameters",
    "weight": "the weight of the gradients in a mean, such as the number of examples",
}

# Names that other libraries and users have for these arguments.
_MEANT = {
    "closure": "value_fn",
    "cost": "value",
    "cost_fn": "value_fn",
    "fn": "value_fn",
    "fun": "value_fn",
    "func": "value_fn",
    "gradient": "grad",
    "gradient_fn": "grad_fn",
    "gradients": "grad",
    "loss": "value",
    "loss_fn": "value_fn",
    "loss_value": "value",
    "max_attention_logits": "max_logits",
    "max_attn_logits": "max_logits",
    "n_samples": "sample_size",
    "num_samples": "sample_size",
    "obj": "value",
    "obj_fn": "value_fn",
    "objective": "value",
    "objective_fn": "value_fn",
    "prev_grad": "previous_grad",
    "value_and_grad": "value_fn",
    "value_and_grad_fn": "value_fn",
}

# How to make the right argument from what has another name, if it is not the same.
_MADE = {
    "closure": "lambda model: ...",
    "value_and_grad": "lambda model: value_and_grad(model)[0]",
    "value_and_grad_fn": "lambda model: value_and_grad_fn(model)[0]",
}


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
        other = next((x for x in extra if _meant(x) == name), None)
        found = f" Is it `{other}`?" if other else ""
        given = _MADE.get(other, other) if other else name
        raise ValueError(
            f"{name_of(owner)} needs the extra argument `{name}`, {EXTRAS[name]}.{found} "
            f"Pass it by name: `step(grads, state, model, {name}={given})`; chains "
            "and wrappers pass it on."
        )
    return extra[name]


def required_value(owner: object, extra: Mapping[str, Any]) -> Any:
    """The extra argument `value`; raises a `ValueError` unless it is one real number."""
    return _number(owner, extra, "value", "Take the mean of the losses of the batch.")


def given_norm(owner: object, extra: Mapping[str, Any]) -> Any:
    """The extra argument `grad_norm`, or `None` if it is not given.

    It raises a `ValueError` unless it is one real number.
    """
    if extra.get("grad_norm") is None:
        return None
    return _number(owner, extra, "grad_norm", "Pass `eqopt.tree.norm(grads)`.")


def without_norm(extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` for updates that are not the gradients whose norm was given."""
    return {name: x for name, x in extra.items() if name != "grad_norm"}


def with_functions(
    extra: Mapping[str, Any],
    to_model: Callable[[Any], Any],
    of_grads: Callable[[Any], Any],
) -> Mapping[str, Any]:
    """`extra` with functions of the parameters in another form, such as one vector.

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


def _number(owner: object, extra: Mapping[str, Any], name: str, advice: str) -> Any:
    value = required(owner, extra, name)
    if not eqx.is_array_like(value):  # such as `(loss, aux)`: NumPy cannot see a trace
        raise ValueError(
            f"{name_of(owner)}: `{name}` must be {EXTRAS[name]}, but is a value of type "
            f"{type(value).__name__}. Pass only the number."
        )
    is_real = not jnp.issubdtype(jnp.result_type(value), jnp.complexfloating)
    if np.ndim(value) != 0 or not is_real:
        raise ValueError(
            f"{name_of(owner)}: `{name}` must be {EXTRAS[name]}, but has shape "
            f"{np.shape(value)} and dtype {jnp.result_type(value)}. {advice}"
        )
    return value


def _meant(name: str) -> str | None:
    """The argument of eqopt that is probably meant by another name."""
    close = difflib.get_close_matches(name, EXTRAS, n=1, cutoff=0.8)
    return None if name in EXTRAS else _MEANT.get(name) or next(iter(close), None)
