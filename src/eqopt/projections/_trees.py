"""Arguments of projections: the floating-point arrays of a tree, and numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Inexact

from .._arguments.checks import check_number_in
from .._errors import InputError
from .._trees.leaves import briefly, disagreement, is_inexact, is_none, keystr
from .._types import Interval, PyTree, RealScalarLike
from ..numerics._numerics import common_dtype, wide_dtype
from ..tree._together import check_real


class Parts(NamedTuple):
    """The arrays of a tree, their indices among its leaves, and the inverse."""

    arrays: list
    places: list[int]
    treedef: Any
    put: Callable[[list], PyTree]


def take(owner: str, name: str, tree: PyTree, complex_too: bool = False) -> Parts:
    """Takes the arrays to project from `tree`, the argument `name`."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
    places = [i for i, x in enumerate(leaves) if is_inexact(x)]
    arrays = [leaves[i] for i in places]
    if not any(x.size for x in arrays):
        raise InputError(
            owner,
            f"`{name}` must have floating-point arrays, but is {briefly(tree)}. Convert "
            "numbers with `jnp.asarray(x, float)`.",
        )
    if not complex_too:
        check_real(owner, name, tree, "Project `x.real` and `x.imag`.")

    def put(new):
        out = list(leaves)
        for i, x in zip(places, new, strict=True):
            out[i] = x
        return treedef.unflatten(out)

    return Parts(arrays, places, treedef, put)


def aligned(owner: str, name: str, given: PyTree, tree: PyTree, parts: Parts) -> list:
    """The arrays of `given` next to the arrays of `tree`; `None` means zeros."""
    try:
        column = parts.treedef.flatten_up_to(given)
    except (ValueError, TypeError):
        raise InputError(owner, f"{disagreement(name, given, 'x', tree)}") from None
    found = [column[i] for i in parts.places]
    for i, x, y in zip(parts.places, parts.arrays, found, strict=True):
        if y is not None and np.shape(y) != x.shape:
            raise InputError(
                owner,
                f"`{name}` must have the shapes of `x`, but has {np.shape(y)} at "
                f"`{keystr(tree, i)}`, but `x` has {x.shape}.",
            )
    return [None if y is None else jnp.asarray(y) for y in found]


def scalar(
    owner: str, name: str, value: RealScalarLike, *bounds: Interval
) -> RealScalarLike:
    """`value`; raises unless it is a number within bounds, by default not negative.

    Traced values are not checked.
    """
    check_number_in(owner, name, value, *bounds)
    number = float(value) if isinstance(value, int) else value
    # A compiled function converts it to an array; without `jit`, for debugging, this
    # does.
    is_for_debugging = jax.config.jax_disable_jit  # type: ignore  # added at run time
    return jnp.asarray(number) if is_for_debugging else number


def widened(arrays: list[Inexact[Array, "..."]]) -> list[Inexact[Array, "..."]]:
    """The arrays in a common precision, at least float32."""
    real = jnp.finfo(wide_dtype(*(x.dtype for x in arrays))).dtype
    wide = lambda x: common_dtype(real, jnp.complex64) if jnp.iscomplexobj(x) else real
    return [x.astype(wide(x)) for x in arrays]


def narrowed(
    new: list[Inexact[Array, "..."]], like: list[Inexact[Array, "..."]]
) -> list[Inexact[Array, "..."]]:
    """The arrays in the dtypes of the arrays that they replace."""
    return [x.astype(y.dtype) for x, y in zip(new, like, strict=True)]
