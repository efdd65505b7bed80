"""The roles of the axes of an array that represents a matrix or a stack of matrices."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from ._construction import Explained
from ._leaves import is_leaf, is_parameter, keystr, parameters
from ._masks import is_function, resolve
from ._storage import shapes_if_stored
from ._types import Params


def _tuple(axes):
    return (axes,) if isinstance(axes, int) else axes


@dataclasses.dataclass(frozen=True)
class MatrixDimensionNumbers(metaclass=Explained):
    """Describes how a parameter represents a matrix, or a stack of matrices.

    Matrices are stacked along all axes that are neither reduced nor output axes, such
    as the axes of layers made with `eqx.filter_vmap`.

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


def of_layers(tree: PyTree) -> list[MatrixDimensionNumbers | None]:
    """For each leaf (counting `None`s), how it multiplies the inputs of its layer.

    The weights of Equinox's linear, convolution and recurrent layers, and of their
    subclasses, are recognised by the layer, stacked or not. Arrays of other layers
    (embeddings, scales of norms, biases) are not matrices. Arrays elsewhere, including
    fields that a subclass adds, are matrices with the inputs first, if they have two
    axes.
    """
    is_inner = lambda x: x is None or (_is_layer(x) and x is not tree)
    numbers = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=is_inner)[0]:
        if _is_layer(x):
            numbers += of_layers(x)
        elif not is_parameter(x):
            numbers.append(None)
        elif _is_layer(tree) and len(path) == 1 and _is_own(tree, path[0].name):
            numbers.append(_of_field(tree, path[0].name))
        else:
            numbers.append(_INPUTS_FIRST if x.ndim == 2 else None)
    return numbers


def _is_layer(x):
    return isinstance(x, eqx.Module) and _kind(type(x)) is not None


@functools.cache
def _kind(cls: type) -> Any:
    """The Equinox layer that a class is, or is a subclass of; `None` if there is none."""
    kinds = (base for base in cls.__mro__ if base.__module__.startswith("equinox.nn."))
    return next(kinds, None)


def _is_own(layer, name):
    """Whether Equinox's layer has this field, not only a subclass of the layer."""
    return name in {field.name for field in dataclasses.fields(_kind(type(layer)))}


_INPUTS_FIRST = MatrixDimensionNumbers()
_LINEAR = MatrixDimensionNumbers(reduction_axis=-1, output_axis=-2)


def _kernel(layer: Any) -> MatrixDimensionNumbers:
    inputs = layer.num_spatial_dims + 1
    return MatrixDimensionNumbers(tuple(range(-inputs, 0)), -inputs - 1)


_WEIGHTS: dict[type, tuple[tuple[str, ...], Callable]] = {
    eqx.nn.Linear: (("weight",), lambda layer: _LINEAR),
    eqx.nn.LSTMCell: (("weight_ih", "weight_hh"), lambda layer: _LINEAR),
    eqx.nn.GRUCell: (("weight_ih", "weight_hh"), lambda layer: _LINEAR),
} | {
    getattr(eqx.nn, f"Conv{transpose}{n}"): (("weight",), _kernel)
    for transpose in ("", "Transpose")
    for n in ("", "1d", "2d", "3d")
}
_NO_WEIGHTS = (), lambda layer: None


def _of_field(layer, name):
    weights, of_weights = _WEIGHTS.get(_kind(type(layer)), _NO_WEIGHTS)
    return of_weights(layer) if name in weights else None


def axes_of_inputs(layer: Any, name: str) -> tuple[int, ...] | None:
    """The axes of a field that a layer sums over, `None` if the field is not a weight."""
    numbers = _of_field(layer, name)
    return None if numbers is None else _tuple(numbers.reduction_axis)


def resolve_dimension_numbers(
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    default: Callable[[PyTree], list] = of_layers,
) -> "list[Axes | None]":
    """The axes of each leaf of `tree` (counting `None`s); `None` if not a matrix.

    **Arguments:**

    - `given`: a tree of `MatrixDimensionNumbers` and `None` like the parameters or a
        prefix of them, a function of the parameters that returns one, or `None` for
        `default(tree)`. A single `MatrixDimensionNumbers` applies to all arrays with at
        least two axes.
    - `tree`: parameters or updates.
    - `params`: the argument of `given` if that is a function; `tree` itself if `None`.
    """
    tree, params = shapes_if_stored(tree), shapes_if_stored(params)
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    if callable(given) and is_function(given):
        given = given(parameters(tree if params is None else params))
    if given is None:
        numbers = default(tree)
    elif isinstance(given, MatrixDimensionNumbers):
        numbers = [given if np.ndim(x) >= 2 else None for x in leaves]
    else:
        numbers = resolve("weight_dimension_numbers", given, tree, params)
    return [
        _axes_of(n, x, tree, i) if n is not None and is_parameter(x) else None
        for i, (n, x) in enumerate(zip(numbers, leaves, strict=True))
    ]


def map_matrices(
    fn: Callable[["Axes", Any], Any],
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    otherwise: Callable[[Any], Any] = lambda x: None,
) -> PyTree:
    """`tree` with `fn(axes, x)` for each matrix `x`, and `otherwise(x)` elsewhere."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    axes = resolve_dimension_numbers(given, tree, params)
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
