"""How an array is a matrix, or a stack of matrices: which axes are which."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Inexact, PyTree

from ._leaves import is_none, is_parameter, keystr, resolve
from ._types import Params


def _tuple(axes: int | tuple[int, ...]) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else axes


@dataclasses.dataclass(frozen=True)
class MatrixDimensionNumbers:
    """Says how a parameter is a matrix, or a stack of matrices.

    Matrices are stacked along all axes that are neither reduced nor output axes: those of
    layers made with `eqx.filter_vmap`, for example.

    !!! example

        ```python
        # A stack of convolution kernels, (layer, out, in, height, width):
        numbers = eqopt.MatrixDimensionNumbers((-3, -2, -1), -4)
        ```

    **Arguments:**

    - `reduction_axis`: the axis, or a tuple of axes, that the layer sums over: its
        inputs. Negative ones count from the end.
    - `output_axis`: the axis, or a tuple of axes, of its outputs.

    **Raises:**

    A `ValueError` if an axis stands for both.
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


# A tree of `MatrixDimensionNumbers` and `None` like the parameters or a prefix of it, or
# a function of the parameters that gives one. (Checked below, for a better message.)
DimensionNumbers: TypeAlias = PyTree | Callable[[Params], PyTree]

_LINEAR = MatrixDimensionNumbers(reduction_axis=-1, output_axis=-2)


def of_layers(tree: PyTree) -> list[MatrixDimensionNumbers | None]:
    """For each leaf (counting `None`s), how it multiplies the inputs of its layer.

    The weights of Equinox's linear, convolution and recurrent layers are known by the
    layer, stacked or not; arrays elsewhere are matrices, inputs first, if they have two
    axes. Embeddings, biases and all else are no matrices.
    """
    layers = jtu.tree_leaves(tree, is_leaf=lambda x: x is None or type(x) in _WEIGHTS)
    return [numbers for layer in layers for numbers in _of_layer(layer)]


def _of_layer(layer: Any) -> list[MatrixDimensionNumbers | None]:
    if type(layer) not in _WEIGHTS:
        is_matrix = is_parameter(layer) and layer.ndim == 2
        return [MatrixDimensionNumbers() if is_matrix else None]
    names, numbers = _WEIGHTS[type(layer)]
    leaves, _ = jtu.tree_flatten_with_path(layer, is_leaf=is_none)
    return [
        numbers(layer) if is_parameter(x) and jtu.keystr(path)[1:] in names else None
        for path, x in leaves
    ]


def _kernel(layer: Any) -> MatrixDimensionNumbers:
    inputs = layer.num_spatial_dims + 1
    return MatrixDimensionNumbers(tuple(range(-inputs, 0)), -inputs - 1)


_WEIGHTS: dict[type, tuple[set[str], Callable]] = {
    eqx.nn.Linear: ({"weight"}, lambda layer: _LINEAR),
    eqx.nn.Embedding: (set(), lambda layer: None),
    eqx.nn.LSTMCell: ({"weight_ih", "weight_hh"}, lambda layer: _LINEAR),
    eqx.nn.GRUCell: ({"weight_ih", "weight_hh"}, lambda layer: _LINEAR),
} | {
    getattr(eqx.nn, f"Conv{kind}"): ({"weight"}, _kernel)
    for kind in (
        "",
        "1d",
        "2d",
        "3d",
        *(f"Transpose{n}" for n in ("", "1d", "2d", "3d")),
    )
}


def resolve_dimension_numbers(
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    default: Callable[[PyTree], list] = of_layers,
) -> list["Axes | None"]:
    """The axes of each leaf of `tree` (counting `None`s), or `None` if it is no matrix.

    **Arguments:**

    - `given`: a tree of `MatrixDimensionNumbers` and `None` like the parameters or a
        prefix of them, a function of the parameters that gives one, or `None` for
        `default(tree)`.
    - `tree`: parameters or updates.
    - `params`: what `given` is a function of; `tree` itself, if `None`.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_none)
    name = "weight_dimension_numbers"
    numbers = default(tree) if given is None else resolve(name, given, tree, params)
    return [
        _axes_of(n, x, lambda i=i: keystr(tree, i))
        if n is not None and is_parameter(x)
        else None
        for i, (n, x) in enumerate(zip(numbers, leaves, strict=True))
    ]


class Axes(NamedTuple):
    """`MatrixDimensionNumbers` of one array: its axes, all counted from the front."""

    stack: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]


def _axes_of(numbers: Any, x: Array, path: Callable[[], str]) -> Axes:
    if not isinstance(numbers, MatrixDimensionNumbers):
        raise TypeError(
            f"`weight_dimension_numbers` has {numbers!r} at `{path()}`: it holds "
            "`eqopt.MatrixDimensionNumbers`, or `None` for what is no matrix."
        )
    reduction, output = (
        tuple(axis + x.ndim if axis < 0 else axis for axis in _tuple(axes))
        for axes in (numbers.reduction_axis, numbers.output_axis)
    )
    named = reduction + output
    if len({*named}) < len(named) or not all(0 <= axis < x.ndim for axis in named):
        raise ValueError(
            f"{numbers} does not fit `{path()}`, which has shape {x.shape}: each axis is "
            f"one of {x.ndim}, and stands for one thing."
        )
    stack = tuple(axis for axis in range(x.ndim) if axis not in named)
    return Axes(stack, reduction, output)


def to_matrices(
    x: Inexact[Array, "*leaf"], axes: Axes
) -> Inexact[Array, "stack reduction output"]:
    """A stack of matrices, with the reduced axes as rows and the output as columns."""
    shape = [math.prod(x.shape[axis] for axis in group) for group in axes]
    return jnp.transpose(x, sum(axes, ())).reshape(shape)


def from_matrices(
    matrices: Inexact[Array, "stack reduction output"], axes: Axes, like: Any
) -> Inexact[Array, "*leaf"]:
    """The inverse of `to_matrices`, for an array of the shape of `like`."""
    order = sum(axes, ())
    shape = [like.shape[axis] for axis in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return jnp.transpose(matrices.reshape(shape), back)
