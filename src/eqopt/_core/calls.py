"""Calls of `update` and `step`: what is checked before, and the errors of wrong ones."""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree, TypeCheckError

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


# Whether a call is running whose gradients have been checked. Parts of it may get none.
_CHECKED: ContextVar[bool] = ContextVar("_CHECKED", default=False)

# The updates that the outermost call got, if it is one of `update`. Its result has their
# dtypes, although parts of it may get wider ones.
GIVEN: ContextVar[PyTree] = ContextVar("GIVEN", default=None)


def explained(fn: Callable) -> Callable:
    """`update` or `step` of a class; if shapes do not fit, its error says where.

    It is for errors of JAX from anywhere in `fn`, such as from a product or a branch. The
    state is compared with a new one for the same parameters.
    """

    own = inspect.signature(fn).parameters
    needed = [*own][:3]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return _call(fn, own, needed, args, kwargs)

    return call


# Not in the wrapper: cloudpickle stores a class of a notebook with the globals that its
# methods use, and cannot store a context variable.
def _call(
    fn: Callable,
    own: Mapping[str, Any],
    needed: list[str],
    args: tuple,
    kwargs: dict[str, Any],
) -> Any:
    """`fn(*args, **kwargs)`, with the checks and errors of `explained`."""
    __tracebackhide__ = True
    tokens = []
    if not _CHECKED.get():
        # If the updates or the state are missing, the error is about that.
        if all(name in kwargs for name in needed[len(args) :]):
            args, kwargs = _with_state_of_jax(needed[2], args, kwargs)
            given = {**dict(zip(own, args, strict=False)), **kwargs}
            _check_gradients(args[0], fn.__name__, needed[1], given)
            if fn.__name__ == "update":
                tokens.append((GIVEN, GIVEN.set(given[needed[1]])))
        tokens.append((_CHECKED, _CHECKED.set(True)))
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        of_axes = is_of_axes(error)
        if not (of_axes or isinstance(error, TypeError | ValueError | IndexError)):
            raise
        # Only our own messages name an argument or a key path in such quotes.
        is_of_types = isinstance(error, TypeCheckError)
        is_ours = "`" in str(error) and not (is_of_types or of_axes)
        is_of_shapes = is_of_types or ANOTHER_MODEL in str(error)
        wrong = misuse(fn, args, kwargs)
        if wrong is None and (is_of_shapes or not is_ours):
            wrong = of_examples(fn, args, kwargs, is_of_shapes)
        if wrong is not None:
            raise wrong from None
        message = where(fn, args, kwargs, error)
        if message is None or (is_ours and not message.endswith(OF_MANY)):
            raise
        raise ValueError(message) from error
    finally:
        for variable, token in tokens:
            variable.reset(token)
    first = "new parameters" if fn.__name__ == "step" else "updates"
    return pair_of(args[0], fn.__name__, first, result)


def _with_state_of_jax(
    name: str, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """`args` and `kwargs`, with arrays of JAX instead of NumPy in the state."""
    state = args[2] if len(args) > 2 else kwargs[name]
    if not any(isinstance(x, np.ndarray | np.generic) for x in jtu.tree_leaves(state)):
        return args, kwargs
    state = jtu.tree_map(of_jax, state)
    if len(args) > 2:
        return (*args[:2], state, *args[3:]), kwargs
    return args, {**kwargs, name: state}


def pair_of(transformation: Any, name: str, first: str, result: Any) -> Any:
    """`result` of the method `name`, a pair of `first` and the state."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise TypeError(
        f"{type(transformation).__name__}.{name}: it must return a pair of the {first} "
        f"and the new state, but returned {briefly(result)} of type "
        f"{type(result).__name__}."
    )


def _check_gradients(
    transformation: Any, name: str, argument: str, given: Mapping[str, Any]
) -> None:
    """Raises a `ValueError` if there is no gradient, but something to train.

    Gradients may be `None` at each parameter that a part of the transformation freezes.
    """
    if given.get("params") is None or jtu.tree_leaves(given[argument]):
        return
    params = parameters(given["params"])
    report = Report(params)
    transformation._route(report, params)
    for i, x in enumerate(report.found):
        if x is not None and not any(part in _FREEZING for _, part in x.parts):
            raise _nothing(
                f"{type(transformation).__name__}.{name}", argument, params, i
            )


_FREEZING = "Freeze", "SetToZero", "frozen"


def check_any(params: PyTree, updates: PyTree) -> None:
    """The check of gradients in `apply_updates`, if no transformation calls it."""
    if not (_CHECKED.get() or jtu.tree_leaves(updates)):
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
