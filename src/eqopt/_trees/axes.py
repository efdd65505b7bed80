"""The roles of the axes of an array that represents a matrix or a stack of matrices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from .._types import Params
from .dimension_numbers import MatrixDimensionNumbers, Unknown, as_tuple
from .leaves import is_leaf, is_parameter, keystr, parameters
from .masks import is_function, resolve
from .recognition import of_layers
from .stored import shapes_if_stored
from .unknown import check_known


# A tree of `MatrixDimensionNumbers` and `None` like the parameters or a prefix of it,
# or a function of the parameters that returns one. (It is checked below, for a better
# message.)
DimensionNumbers: TypeAlias = PyTree | Callable[[Params], PyTree]


def resolve_dimension_numbers(
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    default: Callable[[PyTree], list] = of_layers,
    is_required: bool = False,
) -> "list[Axes | None]":
    """The axes of each leaf of `tree` (counting `None`s); `None` if not a matrix.

    **Arguments:**

    - `given`: a tree of `MatrixDimensionNumbers` and `None` like the parameters or a
        prefix of them, a function of the parameters that returns one, or `None` for
        `default(tree)`. A single `MatrixDimensionNumbers` applies to all arrays with at
        least two axes.
    - `tree`: parameters or updates.
    - `params`: the argument of `given` or `default`; `tree` itself if `None`.
    - `is_required`: whether to raise an error for an `Unknown` array, which otherwise is
        not a matrix.
    """
    tree, params = shapes_if_stored(tree), shapes_if_stored(params)
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    if callable(given) and is_function(given):
        given = given(parameters(tree if params is None else params))
    numbers: list[Any]
    if given is None:
        numbers = _by_default(default, tree, tree if params is None else params)
    elif isinstance(given, MatrixDimensionNumbers):
        numbers = [given if np.ndim(x) >= 2 else None for x in leaves]
    else:
        numbers = resolve("weight_dimension_numbers", given, tree, params)
    if is_required:
        check_known("weight_dimension_numbers", tree, leaves, numbers)
    return [
        None
        if n is None or n is Unknown or not is_parameter(x)
        else _axes_of(n, x, tree, i)
        for i, (n, x) in enumerate(zip(numbers, leaves, strict=True))
    ]


def _by_default(
    default: Callable[[PyTree], list], tree: PyTree, params: Params
) -> list:
    """`default(params)` for each leaf of `tree`, which may lack some parameters."""
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    numbers = treedef.unflatten(default(params))
    try:
        return jtu.tree_structure(tree, is_leaf=is_leaf).flatten_up_to(numbers)
    except (ValueError, TypeError):  # of other structures, which is reported elsewhere
        return default(tree)


def map_matrices(
    fn: Callable[["Axes", Any], Any],
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    otherwise: Callable[[Any], Any] = lambda x: None,
    is_required: bool = False,
) -> PyTree:
    """`tree` with `fn(axes, x)` for each matrix `x`, and `otherwise(x)` elsewhere."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    axes = resolve_dimension_numbers(given, tree, params, is_required=is_required)
    return treedef.unflatten(
        otherwise(x) if a is None else fn(a, x)
        for a, x in zip(axes, leaves, strict=True)
    )


class Axes(NamedTuple):
    """`MatrixDimensionNumbers` of one array: its axes, all counted from the front."""

    stack: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]

    def sides(self, x: Any) -> tuple[int, int]:
        """The numbers of outputs and inputs of each matrix in an array."""
        return size(x.shape, self.output), size(x.shape, self.reduction)

    def short_side_first(self, shape: tuple[int, ...]) -> "Axes":
        """These axes with the smaller side of the matrices as rows.

        For square matrices, the side whose axis comes first in memory.
        """
        sides = self.reduction, self.output
        return Axes(
            self.stack, *sorted(sides, key=lambda side: (size(shape, side), side))
        )


def size(shape, axes):
    """The number of elements along some axes together, for an array of this shape."""
    return math.prod(shape[axis] for axis in axes)


def _axes_of(numbers, x, tree, index):
    if not isinstance(numbers, MatrixDimensionNumbers):
        raise TypeError(
            f"`weight_dimension_numbers` has {numbers!r} at `{keystr(tree, index)}`, "
            "but must hold `eqopt.MatrixDimensionNumbers`, or `None` for a leaf that "
            "is not a matrix."
        )
    reduction, output = (
        tuple(axis + x.ndim if axis < 0 else axis for axis in as_tuple(axes))
        for axes in (numbers.reduction_axis, numbers.output_axis)
    )
    named = reduction + output
    if len({*named}) < len(named) or not all(0 <= axis < x.ndim for axis in named):
        raise ValueError(
            f"{numbers} does not fit `{keystr(tree, index)}`, which has shape "
            f"{x.shape}. Each axis must be one of the {x.ndim} axes of the array, and "
            "have only one role."
        )
    stack = tuple(axis for axis in range(x.ndim) if axis not in named)
    return Axes(stack, reduction, output)


def to_matrices(
    x: Inexact[Array, "*leaf"], axes: Axes
) -> Inexact[Array, "*stack reduction output"]:
    """A stack of matrices, with the reduced axes as rows and the output as columns."""
    stack = [x.shape[axis] for axis in axes.stack]
    sides = [size(x.shape, side) for side in (axes.reduction, axes.output)]
    return jnp.transpose(x, sum(axes, ())).reshape(*stack, *sides)


def from_matrices(
    matrices: Inexact[Array, "*stack reduction output"], axes: Axes, like: Any
) -> Inexact[Array, "*leaf"]:
    """The inverse of `to_matrices`, for an array of the shape of `like`."""
    order = sum(axes, ())
    shape = [like.shape[axis] for axis in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return jnp.transpose(matrices.reshape(shape), back)
