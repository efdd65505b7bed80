"""What is the same in each call of `update` and `step`, and their errors."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax.tree_util as jtu
import numpy as np

from .._errors import InputError, name_error
from .._trees.leaves import is_leaf, is_parameter, keystr
from .._trees.stored import of_jax
from .._types import PyTree


_Method = TypeVar("_Method", bound=Callable[..., Any])


def check_call(method: _Method) -> _Method:
    """Makes `update` or `step` of a class check what it gets.

    The loss in place of gradients is an error, and so are parameters without any update.
    Without parameters, it returns at once. Errors of functions in it, such as `leafwise`,
    get the name of the class.
    """
    name = method.__name__
    own, updates, state, *_ = names = [*inspect.signature(method).parameters]

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = dict(zip(names, args, strict=False)) | kwargs
        if not {own, updates, state} <= given.keys():
            return method(*args, **kwargs)
        try:
            if given.get("params") is not None:
                _check_no_loss(given[updates], updates, given["params"])
                if not jtu.tree_leaves(given[updates]):
                    check_has_updates(given["params"], given[updates], updates)
                    return given["params" if name == "step" else updates], given[state]
            types = {*map(type, jtu.tree_leaves(given[state]))}
            if any(issubclass(x, _OF_NUMPY) for x in types):
                # From a file: JAX narrows the types that NumPy uses by default.
                given[state] = jtu.tree_map(of_jax, given[state])
                args = *(given[x] for x in names[: len(args)]), *args[len(names) :]
                kwargs = {x: given[x] for x in kwargs}
            return method(*args, **kwargs)
        except Exception as error:
            name_error(error, given[own])
            raise

    return cast(_Method, call)


_OF_NUMPY = np.ndarray, np.generic


def _check_no_loss(updates: PyTree, argument: str, params: PyTree) -> None:
    """Raises an error for the loss, or a pair of it and the gradients."""
    if _is_with_loss(updates) and not _is_with_loss(params):
        is_pair = isinstance(updates, tuple)
        found = "a pair of a number and a tree" if is_pair else "one number"
        raise InputError(
            f"`{argument}` is {found}, but must be the gradients alone: `loss, grads = "
            "eqx.filter_value_and_grad(loss_fn)(model)`."
        )


def _is_with_loss(x: PyTree) -> bool:
    first = x[0] if isinstance(x, tuple) and len(x) == 2 else x
    return isinstance(first, float) or getattr(first, "shape", None) == ()


def check_has_updates(
    params: PyTree, updates: PyTree, argument: str = "updates"
) -> None:
    """Raises an error if there are parameters, but no update."""
    if jtu.tree_leaves(updates):
        return
    for i, x in enumerate(jtu.tree_leaves(params, is_leaf=is_leaf)):
        if is_parameter(x):
            raise InputError(
                f"`{argument}` has no array, so nothing would be trained, but `params` "
                f"has parameters, such as `{keystr(params, i)}`. Differentiate the loss "
                "with respect to the model, or to its trained part: "
                "`eqx.filter_grad(loss_fn)(model)`."
            )
