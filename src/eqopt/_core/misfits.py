"""Errors for leaves and numbers that do not fit together in an equation."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import AbstractArray, PyTree

from .._arguments.owners import name_of
from .._jax_internals import is_traced
from .._trees.leaves import (
    ANOTHER_MODEL,
    align,
    briefly,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    listed,
    type_name,
)
from .equation import Equation, WrongResult, is_static


def misfit(
    owner: str,
    path: str,
    equation: Equation,
    shared: Mapping[str, Any],
    arrays: Mapping[str, Any],
    error: Exception,
) -> Exception:
    """The error for a leaf that an equation does not accept.

    **Arguments:**

    - `owner`: the name of the transformation.
    - `path`: the key path of the leaf.
    - `equation`, `shared`: the equation, and its shared values that are not floats.
    - `arrays`: the values that meet there, by the names that users know.
    - `error`: what was raised.
    """
    wrong = _wrong_number(equation, shared)
    if wrong is not None:
        return TypeError(f"{owner}: {wrong}")
    arrays = {name: x for name, x in arrays.items() if hasattr(x, "dtype")}
    found = ", ".join(
        f"`{name}` is {x.dtype}{list(x.shape)}" for name, x in arrays.items()
    )
    is_complex = {name: jnp.iscomplexobj(x) for name, x in arrays.items()}
    shapes = {x.shape for x in arrays.values()}
    # A part may have a number for each leaf.
    fit = shapes <= {(), arrays["updates"].shape}
    if fit and is_complex["updates"] and not all(is_complex.values()):
        return TypeError(_complex_for_real(owner, path, found))
    if len(shapes) == 1 and isinstance(error, WrongResult):
        return ValueError(
            f"{owner}: at `{path}`, {error}. An equation must return the update and the "
            "new slots in the shapes of the old ones."
        )
    return ValueError(f"{owner}: shapes do not fit at `{path}`: {found}. {ONE_MODEL}")


ONE_MODEL = (
    "Updates, parameters and optimizer state must belong to the same model. "
    f"{ANOTHER_MODEL}"
)


class OtherState(ValueError):
    """The state of an optimizer with other arguments; `where` says what differs."""


def other_shards(owner: str, trees: Mapping[str, tuple[PyTree, PyTree]]) -> str | None:
    """The message for the first array in other shards, on explicit axes.

    `trees` has each argument of a call, and a tree in the shards of the parameters.
    """
    remedies = _remedies("jax.sharding.reshard(g, jax.typeof(p).sharding)")
    for name, remedy in remedies.items():
        found, like = (dict(jtu.tree_leaves_with_path(tree)) for tree in trees[name])
        for path, x in found.items():
            y: Any = like.get(path)
            if not (hasattr(x, "dtype") and np.shape(x) == np.shape(y)):
                continue
            spec, expected = (jax.typeof(z).sharding.spec for z in (x, y))
            if spec != expected:
                return (
                    f"{owner}: `{name}{jtu.keystr(path)}` has the sharding {spec}, but "
                    f"{expected} for these parameters, whose mesh has explicit axes. "
                    f"{remedy}"
                )
    return None


def other_devices(owner: str, trees: Mapping[str, tuple[PyTree, PyTree]]) -> str | None:
    """The message for the first array on other devices than the parameters.

    `trees` is as in `other_shards`.
    """
    expected = next((_devices(x) for x in jtu.tree_leaves(trees["updates"][1])), None)
    for name, remedy in _remedies("jax.device_put(g, p.sharding)").items():
        for path, x in jtu.tree_leaves_with_path(trees[name][0]):
            found = _devices(x)
            if found and expected and found != expected:
                return (
                    f"{owner}: `{name}{jtu.keystr(path)}` is on {listed(found, '')}, but "
                    f"the parameters are on {listed(expected, '')}. {remedy}"
                )
    return None


def _devices(x: Any) -> list[str]:
    """The names of the devices of an array that must stay there."""
    if not isinstance(x, jax.Array) or is_traced(x) or not x.committed:
        return []
    devices = sorted(x.sharding.device_set, key=lambda d: (d.platform, d.id))
    return [f"{d.platform}:{d.id}" for d in devices]


def _remedies(placed: str) -> dict[str, str]:
    """By argument. `placed` is the code for a gradient `g` placed like `p`."""
    return {
        "state": "Make the state of the placed model, `state = opt.init(model)`, or "
        "place the old one like it: `eqopt.tree.migrate(opt, state, model)`.",
        "updates": "Place the gradients like the parameters: `jax.tree.map(lambda g, p: "
        f"{placed}, grads, params)`.",
    }


def check_shapes(owner: object, updates: PyTree, like: PyTree, name: str) -> None:
    """Raises a `ValueError` if an update has another shape than the array in `like`.

    For transformations that compute new updates before an equation could check them.
    """
    leaves, treedef = flatten_updates(updates)
    for i, (u, x) in enumerate(
        zip(leaves, align(treedef, like, name, updates), strict=True)
    ):
        if u is not None and hasattr(x, "shape") and u.shape != x.shape:
            found, expected = (type_name(y.dtype, y.shape) for y in (u, x))
            raise ValueError(
                f"{name_of(owner)}: shapes do not fit at `{keystr(updates, i)}`: "
                f"`updates` is {found}, `{name}` is {expected}. {ONE_MODEL}"
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


def check_wide(updates: PyTree) -> None:
    """Raises a `TypeError` for an update that cannot reach a parameter in two parts."""
    for i, g in enumerate(jtu.tree_leaves(updates, is_leaf=is_leaf)):
        if is_parameter(g) and g.dtype.itemsize < 4:
            raise TypeError(
                f"StoreParams: the update at `{keystr(updates, i)}` has dtype "
                f"{g.dtype}, which is too coarse to reach the new parameter. Call "
                "`step`, which returns the parameters themselves, or cast the "
                "gradients: `eqopt.tree.cast(grads, jnp.float32)`."
            )


def _complex_for_real(owner: str, path: str, found: str) -> str:
    return (
        f"{owner}: dtypes do not fit at `{path}`: {found}. A real parameter and its "
        "state need real updates. Pass `jax.tree.map(jnp.real, updates)`, or make the "
        "parameter complex before `init`."
    )


def _wrong_number(equation: Equation, shared: Mapping[str, Any]) -> str | None:
    """The error message if a value that all leaves share is of the wrong kind."""
    expected = inspect.signature(equation).parameters
    for name, value in shared.items():
        annotation = expected[name].annotation
        if is_static(value) and _is_array_type(annotation):
            if isinstance(value, Callable):
                return (
                    f"`{name}` is a function, but the equation `{equation.name}` needs a "
                    "number. If it is a schedule, wrap the whole optimizer in "
                    "`eqopt.Scheduled(optimizer)`, which evaluates all schedules in it."
                )
            return (
                f"`{name}` is {value!r}, but the equation `{equation.name}` needs a "
                "number."
            )
        if not is_static(value) and annotation in (bool, str):
            return (
                f"`{name}` is an array of dtype {value.dtype}, but it determines the "
                f"compiled program. Pass a Python {annotation.__name__}."
            )
    return None


def _is_array_type(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def no_parameter(path: str, p: Any) -> Exception:
    """The error for an update at `path`, where the parameters have `p`."""
    if not hasattr(p, "dtype"):
        found = f"no array, but {briefly(p)}"
        fix = "Pass the model whose gradients these are."
    else:
        found = f"an array of dtype {p.dtype}"
        fix = (
            "Parameters must be floating-point or complex, of at least 16 bits. Cast "
            "it with `.astype(jnp.float32)`, or pass `None` in `updates`."
        )
    return ValueError(
        f"`updates` has a value at `{path}`, where `params` has {found}. {fix}"
    )


def no_matrix(owner: str, slot: str, path: str) -> Exception:
    """The error for an update at `path`, which only `init` treated as a matrix."""
    return ValueError(
        f"{owner}: `{path}` was a matrix in `init` (`{slot}`), but is not one now. By "
        "default, the layers next to an array decide whether it is a stack. Pass the "
        "same model to `init`, or pass `weight_dimension_numbers`."
    )


def stateless(owner: str, slot: str, path: str) -> Exception:
    """The error for an update at `path`, where the state has nothing."""
    return ValueError(
        f"{owner}: `updates` has a value at `{path}`, which has no optimizer state "
        f"(`{slot}`). Was the parameter frozen, masked or missing in `init`? Call "
        "`init` with the model whose gradients you pass, or remove this gradient: "
        "`eqx.filter(grads, is_trained)`."
    )
