"""Calls of `update` and `step`: what is checked before, and the errors of wrong ones."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree, TypeCheckError

from .._arguments.owners import name_owner
from .._trees.leaves import (
    ANOTHER_MODEL,
    briefly,
    is_leaf,
    is_parameter,
    keystr,
    parameters,
)
from .._trees.routes import Report
from .._trees.stored import of_jax
from .misuses import OF_MANY, is_of_axes, misuse, of_examples, where


def checked_call(method: Callable) -> Callable:
    """`update` or `step` of a class, with the checks of its arguments and its result.

    If `params` are given, but no update, all parameters must be frozen. Then it returns
    at once, and no count changes.
    """
    name, signature = method.__name__, inspect.signature(method).parameters
    names = [*signature]
    _, updates, state, *_ = names
    first = "new parameters" if name == "step" else "updates"

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = dict(zip(names, args, strict=False)) | kwargs
        if updates in given and state in given:
            types = set(map(type, jtu.tree_leaves(given[state])))
            if any(issubclass(x, _OF_NUMPY) for x in types):
                given[state] = jtu.tree_map(of_jax, given[state])
                args = *[given[x] for x in names[: len(args)]], *args[len(names) :]
                kwargs = {x: given[x] for x in kwargs}
            is_empty = not jtu.tree_leaves(given[updates])
            if is_empty and given.get("params") is not None:
                _check_all_frozen(given, names[0], updates, name)
                return given["params" if name == "step" else updates], given[state]
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            name_owner(error, type(args[0]).__name__ if args else name)
            explain(error, method, args, kwargs)
            raise
        return pair_of(args[0], name, first, result)

    return call


def explain(
    error: Exception, method: Callable, args: tuple, kwargs: dict[str, Any]
) -> None:
    """Raises a better error, if `error` is about trees that do not fit together.

    It is for errors of JAX from anywhere in `method`, such as from a product or a branch.
    The state is compared with a new one for the same parameters. A call inside this one
    may have explained the same error by its part of the state.
    """
    error = getattr(error, "_explained", error)
    of_axes = is_of_axes(error)
    if not (of_axes or isinstance(error, TypeError | ValueError | IndexError)):
        return
    # Only our own messages name an argument or a key path in such quotes.
    is_of_types = isinstance(error, TypeCheckError)
    is_ours = "`" in str(error) and not (is_of_types or of_axes)
    is_of_shapes = is_of_types or ANOTHER_MODEL in str(error)
    wrong = misuse(method, args, kwargs)
    if wrong is None and (is_of_shapes or not is_ours):
        wrong = of_examples(method, args, kwargs, is_of_shapes)
    if wrong is not None:
        raise _explaining(error, wrong) from None
    message = where(method, args, kwargs, error)
    if message is not None and (not is_ours or message.endswith(OF_MANY)):
        raise _explaining(error, ValueError(message)) from error


def _explaining(error: Exception, better: Exception) -> Exception:
    setattr(better, "_explained", error)  # noqa: B010
    return better


_OF_NUMPY = np.ndarray, np.generic


def pair_of(transformation: Any, name: str, first: str, result: Any) -> Any:
    """`result` of the method `name`, a pair of `first` and the state."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise TypeError(
        f"{type(transformation).__name__}.{name}: it must return a pair of the {first} "
        f"and the new state, but returned {briefly(result)} of type "
        f"{type(result).__name__}."
    )


def _check_all_frozen(
    given: Mapping[str, Any], own: str, argument: str, name: str
) -> None:
    """Raises a `ValueError` if a parameter is not frozen.

    Gradients may be `None` at each parameter that a part of the transformation freezes.
    """
    transformation, params = given[own], parameters(given["params"])
    report = Report(params)
    transformation._route(report, params)
    for i, x in enumerate(report.found):
        if x is not None and not any(part in _FREEZING for _, part in x.parts):
            raise _nothing(
                f"{type(transformation).__name__}.{name}", argument, params, i
            )


_FREEZING = "Freeze", "SetToZero", "frozen"


def check_any(params: PyTree, updates: PyTree) -> None:
    """The check of gradients in `apply_updates`."""
    if not jtu.tree_leaves(updates):
        for i, x in enumerate(jtu.tree_leaves(params, is_leaf=is_leaf)):
            if is_parameter(x):
                raise _nothing("apply_updates", "updates", params, i)


def _nothing(owner: str, argument: str, params: PyTree, i: int) -> Exception:
    return ValueError(
        f"{owner}: `{argument}` has no array, so nothing would be trained, but `params` "
        f"has parameters, such as `{keystr(params, i)}`. Was the loss differentiated "
        "with respect to a part of the model without parameters? Pass the part to be "
        "trained first: `grads = eqx.filter_grad(loss_fn)(model)`. If nothing is to be "
        "trained in this step, do not call it."
    )
