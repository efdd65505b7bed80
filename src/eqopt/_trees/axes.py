"""The roles of the axes of an array that represents a matrix or a stack of matrices."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from .._arguments.construction import Explained
from .._types import Params
from .layers import axes_of_inputs, has_field, is_layer, stacks
from .leaves import is_leaf, is_parameter, keystr, listed, parameters
from .masks import is_function, resolve
from .stored import shapes_if_stored


def _tuple(axes):
    return (axes,) if isinstance(axes, int) else axes


@dataclasses.dataclass(frozen=True)
class MatrixDimensionNumbers(metaclass=Explained):
    """Describes how a parameter represents a matrix, or a stack of matrices.

    Matrices are stacked along all axes that are neither reduced nor output axes, such
    as the axes of layers made with `eqx.filter_vmap`. By default, methods for matrices
    use the numbers of [`eqopt.groups.layer_matrices`][].

    !!! example

        ```python
        # A stack of convolution kernels, (layer, out, in, height, width):
        numbers = eqopt.MatrixDimensionNumbers((-3, -2, -1), -4)
        ```

    **Arguments:**

    - `reduction_axis`: the axis, or a tuple of axes, that the layer sums over: its
        inputs. Negative axes count from the end. Defaults to 0.
    - `output_axis`: the axis, or a tuple of axes, of its outputs. Defaults to 1.

    **Raises:**

    A `ValueError` if an axis is both a reduction axis and an output axis.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1

    def __post_init__(self):
        both = {*_tuple(self.reduction_axis)} & {*_tuple(self.output_axis)}
        if both:
            raise ValueError(
                f"MatrixDimensionNumbers: axis {min(both)} cannot be both a reduction "
                "axis and an output axis."
            )


# A tree of `MatrixDimensionNumbers` and `None` like the parameters or a prefix of it,
# or a function of the parameters that returns one. (It is checked below, for a better
# message.)
DimensionNumbers: TypeAlias = PyTree | Callable[[Params], PyTree]


class _Own:
    """In place of the numbers of an array outside the layers of Equinox."""


class Unknown:
    """In place of the numbers of an array that may be a stack of matrices, or not."""


_INPUTS_FIRST, _STACKED = MatrixDimensionNumbers(), MatrixDimensionNumbers(-2, -1)
_LINEAR = MatrixDimensionNumbers(reduction_axis=-1, output_axis=-2)

Numbers: TypeAlias = MatrixDimensionNumbers | type[Unknown] | None


def of_layers(tree: PyTree) -> list[Numbers]:
    """For each leaf (counting `None`s), how it multiplies the inputs of its layer.

    The weights of Equinox's linear, convolution and recurrent layers, and of their
    subclasses, are recognised by the layer, stacked or not. Arrays of other layers
    (embeddings, scales of norms, biases) are not matrices. Arrays elsewhere, including
    fields that a subclass adds, are matrices with the inputs first, if they have two
    axes in addition to the axes of a stack that `stacks` finds, and `Unknown` if they
    have more.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    numbers = _of_layers(tree)
    own = [i for i, n in enumerate(numbers) if n is _Own]
    sizes = (
        stacks(tree) if any(leaves[i].ndim >= 2 for i in own) else [()] * len(leaves)
    )
    for i in own:
        axes = leaves[i].ndim - len(sizes[i])
        matrix = _STACKED if sizes[i] else _INPUTS_FIRST
        numbers[i] = None if axes < 2 else matrix if axes == 2 else Unknown
    return numbers


def _of_layers(tree: PyTree) -> list:
    is_inner = lambda x: is_leaf(x) or (is_layer(x) and x is not tree)
    numbers = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=is_inner)[0]:
        if is_layer(x):
            numbers += _of_layers(x)
        elif not is_parameter(x):
            numbers.append(None)
        elif is_layer(tree) and len(path) == 1 and has_field(tree, path[0].name):
            numbers.append(_of_field(tree, path[0].name))
        else:
            numbers.append(_Own)
    return numbers


def _of_field(layer: Any, name: str) -> MatrixDimensionNumbers | None:
    inputs = axes_of_inputs(layer, name)
    if inputs is None or len(inputs) == 1:
        return None if inputs is None else _LINEAR
    return MatrixDimensionNumbers(inputs, -len(inputs) - 1)


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
        _check_known(tree, leaves, numbers)
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
        tuple(axis + x.ndim if axis < 0 else axis for axis in _tuple(axes))
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


def _check_known(tree: PyTree, leaves: list, numbers: list) -> None:
    """Raises if the numbers of a parameter in `tree` are `Unknown`."""
    own = [i for i, n in enumerate(numbers) if n is Unknown and is_parameter(leaves[i])]
    if not own:
        return
    (first, *others), shape = own, leaves[own[0]].shape
    path = keystr(tree, first)
    at = f"lambda m: m{'' if path == '(the root)' else path}"
    message = (
        f"`weight_dimension_numbers` is not given, but `{path}` has shape {shape}, and "
        "no layer of Equinox says which of its axes make a matrix. If it is a stack of "
        "matrices, inputs first, pass `weight_dimension_numbers=lambda params: "
        f"eqx.tree_at({at}, eqopt.groups.layer_matrices(params), "
        "eqopt.MatrixDimensionNumbers(-2, -1), is_leaf=lambda x: x is None)`. If it is "
        "not, pass `weight_dimension_numbers=eqopt.groups.layer_matrices`, which has "
        "`None` there."
    )
    if others:
        message += f" Decide the same for {listed([keystr(tree, i) for i in others])}."
    paths = [path for path, _ in jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]]
    *node, _ = paths[first] or (None,)
    for i, (path, x) in enumerate(zip(paths, leaves, strict=True)):
        is_near = [*path[: len(node)]] == node and is_parameter(x)
        if is_near and numbers[i] is _INPUTS_FIRST and x.shape[0] == shape[0]:
            message += (
                f" `{keystr(tree, i)}`, of shape {x.shape}, counts as a single matrix. "
                "If it is a stack of vectors, set it to `None`, too."
            )
            break
    raise ValueError(message)


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
