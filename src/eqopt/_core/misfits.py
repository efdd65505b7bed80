"""Errors for leaves that do not fit together in an equation."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import InputError
from .._trees.leaves import (
    ANOTHER_MODEL,
    ONE_MODEL,
    align,
    briefly,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    type_name,
)
from .._types import PyTree


def misfit(path: str, arrays: Mapping[str, Any], error: Exception) -> Exception:
    """The error for a leaf that an equation does not accept.

    **Arguments:**

    - `path`: the key path of the leaf.
    - `arrays`: the values that meet there, by the names that users know.
    - `error`: what the equation raised.
    """
    arrays = {name: x for name, x in arrays.items() if hasattr(x, "dtype")}
    found = ", ".join(f"`{name}` is {_type(x)}" for name, x in arrays.items())
    shapes, g = {x.shape for x in arrays.values()}, arrays["updates"]
    # Other slots, such as the sums of rows, may be real for each update.
    alike = [jnp.iscomplexobj(x) for x in arrays.values() if x.shape == g.shape]
    if jnp.iscomplexobj(g) and not all(alike):
        return InputError(_complex_for_real(path, found))
    if len(shapes) == 1:
        problem = getattr(error, "problem", error)
        return InputError(f"at `{path}`, {problem}")
    is_about_results = type(error) is InputError
    reason = f"{error.problem} {ANOTHER_MODEL}" if is_about_results else ONE_MODEL
    return InputError(f"shapes do not fit at `{path}`: {found}. {reason}")


def _type(x: Any) -> str:
    return type_name(x.dtype, x.shape)


def _pairs(updates: PyTree, like: PyTree, name: str) -> Iterator[tuple[int, Any, Any]]:
    """The position of each update that has an array in `like`, and both arrays."""
    leaves, treedef = flatten_updates(updates)
    column = align(treedef, like, name, updates)
    for i, (u, x) in enumerate(zip(leaves, column, strict=True)):
        if u is not None and hasattr(x, "dtype"):
            yield i, u, x


def check_shapes(updates: PyTree, like: PyTree, name: str) -> None:
    """Raises an error if an update has another shape than the array in `like`.

    For transformations that compute new updates before an equation could check them.
    """
    for i, u, x in _pairs(updates, like, name):
        if u.shape != x.shape:
            raise InputError(
                f"shapes do not fit at `{keystr(updates, i)}`: `updates` is {_type(u)}, "
                f"`{name}` is {_type(x)}. {ONE_MODEL}"
            )


def check_real(updates: PyTree, like: PyTree, name: str) -> None:
    """Raises an error if a complex update meets a real array in `like`.

    For transformations that read gradients before an equation could check them.
    """
    for i, u, x in _pairs(updates, like, name):
        if jnp.iscomplexobj(u) and not jnp.iscomplexobj(x):
            found = f"`updates` is {_type(u)}, `{name}` is {_type(x)}"
            raise InputError(_complex_for_real(keystr(updates, i), found))


def check_wide(updates: PyTree) -> None:
    """Raises an error for an update that cannot reach a parameter in two parts."""
    for i, g in enumerate(jtu.tree_leaves(updates, is_leaf=is_leaf)):
        if is_parameter(g) and g.dtype.itemsize < 4:
            raise InputError(
                f"the update at `{keystr(updates, i)}` has dtype {g.dtype}, which is too "
                "coarse to reach the new parameter. Call `step`, or cast the gradients: "
                "`eqopt.tree.cast(grads, jnp.float32)`."
            )


def _complex_for_real(path: str, found: str) -> str:
    return (
        f"dtypes do not fit at `{path}`: {found}. A real parameter and its state need "
        "real updates. Pass `jax.tree.map(jnp.real, updates)`, or make the parameter "
        "complex before `init`."
    )


def no_parameter(path: str, p: Any) -> Exception:
    """The error for an update at `path`, where the parameters have `p`."""
    if hasattr(p, "dtype"):
        found = f"an array of dtype {p.dtype}"
        fix = (
            "Parameters must be floating-point or complex, of at least 16 bits. Cast "
            "it with `.astype(jnp.float32)`, or pass `None` in `updates`."
        )
    else:
        found = f"no array, but {briefly(p)}"
        fix = "Pass the model whose gradients these are."
    problem = f"`updates` has a value at `{path}`, where `params` has {found}. {fix}"
    return InputError(problem)


def stateless(slot: str, path: str) -> Exception:
    """The error for an update at `path`, where the state has nothing."""
    return InputError(
        f"`updates` has a value at `{path}`, which has no optimizer state (`{slot}`). "
        "Was the parameter frozen, masked or missing in `init`? Call `init` with the "
        "model whose gradients you pass, or remove this gradient: "
        "`eqx.filter(grads, is_trained)`."
    )
