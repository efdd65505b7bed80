"""Errors for leaves and numbers that do not fit together in an equation."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import AbstractArray, PyTree, TypeCheckError

from .._arguments.extra import check_names
from .._arguments.owners import name_of
from .._trees.leaves import (
    ANOTHER_MODEL,
    align,
    briefly,
    flatten_updates,
    is_parameter,
    keystr,
    parameters,
    too_narrow,
)
from .equation import WrongResult
from .kernel import Operation


def misfit(
    owners: Sequence[str],
    operations: Sequence[Operation],
    loose: Sequence[Any],
    path: str,
    arrays: Mapping[str, Any],
    error: Exception,
) -> Exception:
    """The error for a leaf that an equation, or a sum over leaves, does not accept.

    **Arguments:**

    - `owners`, `operations`: the names of the transformations, and their operations.
    - `loose`: the values of the `loose` names of all operations.
    - `path`: the key path of the leaf.
    - `arrays`: the values that meet there, by the names that users know.
    - `error`: what was raised.
    """
    for owner, operation in zip(owners, operations, strict=True):
        wrong = _wrong_number(operation, loose[: len(operation.loose)])
        loose = loose[len(operation.loose) :]
        if wrong is not None:
            return TypeError(f"{owner}: {wrong}")
    owner = " and ".join(dict.fromkeys(owners)) or "apply_updates"
    arrays = {name: x for name, x in arrays.items() if hasattr(x, "dtype")}
    found = ", ".join(
        f"`{name}` is {x.dtype}{list(x.shape)}" for name, x in arrays.items()
    )
    is_complex = {name: jnp.iscomplexobj(x) for name, x in arrays.items()}
    same_shapes = len({x.shape for x in arrays.values()}) == 1
    if same_shapes and is_complex["updates"] and not all(is_complex.values()):
        return TypeError(_complex_for_real(owner, path, found))
    if same_shapes and isinstance(error, WrongResult):
        return ValueError(
            f"{owner}: at `{path}`, {error}. An equation must return the update and the "
            "new slots in the shapes of the old ones."
        )
    return ValueError(f"{owner}: shapes do not fit at `{path}`: {found}. {_ONE_MODEL}")


# Whether a call with extra arguments is running. Their names are only checked for the
# outermost transformation: they are also passed to parts that do not read them.
_IS_INSIDE: ContextVar[bool] = ContextVar("_IS_INSIDE", default=False)


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
        token = None
        if kwargs and not _IS_INSIDE.get():
            extra = {name: x for name, x in kwargs.items() if name not in own}
            # If the updates or the state are missing, the error is about that.
            if all(name in kwargs for name in needed[len(args) :]):
                check_names(args[0], fn.__name__, extra)
            token = _IS_INSIDE.set(True)
        try:
            return fn(*args, **kwargs)
        except (TypeError, ValueError) as error:
            misuse = _misuse(fn, args, kwargs)
            if misuse is not None:
                raise misuse from None
            # Only our own messages name an argument or a key path in such quotes.
            is_ours = "`" in str(error) and not isinstance(error, TypeCheckError)
            message = None if is_ours else _where(fn, args, kwargs)
            if message is None:
                raise
            raise ValueError(message) from error
        finally:
            if token is not None:
                _IS_INSIDE.reset(token)

    return call


def _misuse(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """The error for a call that forgets the parameters, or passes the loss."""
    name = fn.__name__
    owner = f"{type(args[0]).__name__}.{name}"
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
    except TypeError as error:
        call = f"`opt.{name}(grads, state, model)`"
        return TypeError(f"{owner}: {error}. Call {call}, with the whole model.")
    params = given.pop("params", None)
    _, (argument, updates), (_, state) = list(given.items())[:3]
    has_arrays = any(np.ndim(x) for x in jtu.tree_leaves((state, params)))
    if _is_number(updates) and has_arrays:
        found = "is one number. Did you pass the loss?"
    elif _is_with_loss(updates) and not _is_with_loss(params):
        found = "is a pair of a number and a tree. Did you pass `(loss, grads)`?"
    elif params is not None and _has_others(updates) and not _has_others(params):
        return TypeError(
            f"{owner}: `{argument}` is a whole model, and `params` has only arrays. Were "
            f"they exchanged? Call `opt.{name}(grads, state, model)`, in this order."
        )
    else:
        return None
    return ValueError(
        f"{owner}: `{argument}` {found} Pass only the gradients: `loss, grads = "
        f"eqx.filter_value_and_grad(loss_fn)(model)`, then `opt.{name}(grads, state, "
        "model)`."
    )


def _is_number(x: Any) -> bool:
    return isinstance(x, float | int) or getattr(x, "shape", None) == ()


def _has_others(x: Any) -> bool:
    return not all(map(is_parameter, jtu.tree_leaves(x)))


def _is_with_loss(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and _is_number(x[0])


def _where(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> str | None:
    """The message for the first array of another shape, if there is one."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
        transformation, updates, state, *_ = given.values()
        params = given.get("params")
        tree = updates if params is None else params
        fresh = eqx.filter_eval_shape(transformation.init, tree)
    except Exception:  # more than a shape is wrong, and the first error is about that
        return None
    pairs = {"updates": (updates, parameters(tree)), "state": (state, fresh)}
    for name, trees in pairs.items():
        found, like = map(jtu.tree_leaves_with_path, trees)
        if [path for path, _ in found] != [path for path, _ in like]:
            continue
        for (path, x), (_, y) in zip(found, like, strict=True):
            # Gradients of examples may have one more axis.
            if np.ndim(x) == np.ndim(y) and np.shape(x) != np.shape(y):
                return (
                    f"{name_of(transformation)}: `{name}{jtu.keystr(path)}` has shape "
                    f"{list(np.shape(x))}, but {list(np.shape(y))} for these parameters. "
                    f"{_ONE_MODEL}"
                )
    return None


_ONE_MODEL = (
    "Updates, parameters and optimizer state must belong to the same model. "
    f"{ANOTHER_MODEL}"
)


def check_real(owner: object, updates: PyTree, like: PyTree, name: str) -> None:
    """Raises a `TypeError` if a complex update meets a real array in `like`.

    For transformations that read gradients before an equation could check them.
    """
    leaves, treedef = flatten_updates(updates)
    for i, (u, x) in enumerate(
        zip(leaves, align(treedef, like, name, updates), strict=True)
    ):
        if jnp.iscomplexobj(u) and hasattr(x, "dtype") and not jnp.iscomplexobj(x):
            found = f"`updates` is {u.dtype}, `{name}` is {x.dtype}"
            raise TypeError(
                _complex_for_real(name_of(owner), keystr(updates, i), found)
            )


def _complex_for_real(owner: str, path: str, found: str) -> str:
    return (
        f"{owner}: dtypes do not fit at `{path}`: {found}. A real parameter and its "
        "state need real updates. Pass `jax.tree.map(jnp.real, updates)`, or make the "
        "parameter complex before `init`."
    )


def _wrong_number(operation: Operation, loose: Sequence[Any]) -> str | None:
    """The error message if a value that all leaves share is of the wrong kind."""
    expected = inspect.signature(operation.equation).parameters
    is_array = lambda name: _is_array_type(expected[name].annotation)
    for name, value in operation.static:
        if is_array(name) and isinstance(value, Callable):
            return (
                f"`{name}` is a function, but the equation "
                f"`{operation.equation.name}` needs a number. If it is a schedule, "
                "wrap the whole optimizer in `eqopt.Scheduled(optimizer)`, which "
                "evaluates all schedules in it."
            )
        if is_array(name):
            return (
                f"`{name}` is {value!r}, but the equation `{operation.equation.name}` "
                "needs a number."
            )
    for name, value in zip(operation.loose, loose, strict=True):
        if expected[name].annotation in (bool, str):
            return (
                f"`{name}` is an array of dtype {value.dtype}, but it determines the "
                "compiled program. Pass a Python "
                f"{expected[name].annotation.__name__}."
            )
    return None


def _is_array_type(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def no_parameter(path: str, p: Any) -> Exception:
    """The error for an update at `path`, where the parameters have `p`."""
    if hasattr(p, "dtype") and jnp.issubdtype(p.dtype, jnp.inexact):
        return TypeError(too_narrow("params", path, p))
    if not hasattr(p, "dtype"):
        found = f"no array, but {briefly(p)}"
        fix = "Pass the model whose gradients these are."
    else:
        found = f"an array of dtype {p.dtype}"
        fix = (
            "Parameters must be floating-point or complex. Cast it with "
            "`.astype(jnp.float32)`, or pass `None` in `updates`."
        )
    return ValueError(
        f"`updates` has a value at `{path}`, where `params` has {found}. {fix}"
    )


def no_matrix(owner: str, slot: str, path: str) -> Exception:
    """The error for an update at `path`, which only `init` treated as a matrix."""
    return ValueError(
        f"`{path}` was a matrix in `init`, but is not one now ({owner}, `{slot}`). By "
        "default, the layers next to an array decide whether it is a stack. Pass the "
        "same model to `init`, or pass `weight_dimension_numbers`."
    )


def stateless(owner: str, slot: str, path: str) -> Exception:
    """The error for an update at `path`, where the state has nothing."""
    return ValueError(
        f"`updates` has a value at `{path}`, which has no optimizer state ({owner}, "
        f"`{slot}`). Was the parameter frozen, masked or missing in `init`? Call "
        "`init` with the model whose gradients you pass, or remove this gradient: "
        "`eqx.filter(grads, is_trained)`."
    )
