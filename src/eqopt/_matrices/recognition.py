"""Which arrays are matrices: by the layers of Equinox, by names, and by stacks."""

from typing import Any

import jax.tree_util as jtu

from .._trees.leaves import is_leaf, is_parameter
from .._types import PyTree
from .dimension_numbers import MatrixDimensionNumbers, Numbers, Unknown
from .layers import (
    axes_of_inputs,
    find_stacks,
    has_field,
    is_field,
    is_layer,
    shapes_of_one,
)
from .named import Named, named_leaves


class Own:
    """In place of the numbers of an array outside all layers."""


INPUTS_FIRST, STACKED = MatrixDimensionNumbers(), MatrixDimensionNumbers(-2, -1)
_LINEAR = MatrixDimensionNumbers(reduction_axis=-1, output_axis=-2)


def of_layers(tree: PyTree) -> list[Numbers]:
    """For each leaf (counting `None`s), how it multiplies the inputs of its layer.

    The weights of Equinox's linear, convolution and recurrent layers, and of their
    subclasses, are recognised by the layer, stacked or not. Arrays of other layers
    (embeddings, scales of norms, biases) are not matrices. In a node that replaces a
    weight, only an array with its shape is a matrix. Arrays with named axes are what
    their layer names them, and `Unknown` if it does not. Arrays elsewhere, including
    fields that a subclass adds, are matrices with the inputs first, if they have two
    axes in addition to the axes of a stack that `find_stacks` finds, and `Unknown` if
    they have more.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    numbers = by_class(tree)
    own = [i for i, n in enumerate(numbers) if n is Own]
    sizes = (
        find_stacks(tree)
        if any(leaves[i].ndim >= 2 for i in own)
        else [()] * len(leaves)
    )
    for i in own:
        numbers[i] = of_own(leaves[i].ndim, len(sizes[i]))
    return numbers


def of_own(axes: int, stack: int) -> Numbers:
    """The numbers of an array outside all layers, with its axes of a stack first."""
    matrix = STACKED if stack else INPUTS_FIRST
    axes -= stack
    return None if axes < 2 else matrix if axes == 2 else Unknown


def by_class(tree: PyTree) -> list:
    """What the layers of Equinox and the names of axes say; `Own` if they say nothing."""
    named = named_leaves(tree)
    return [
        numbers if name is None or numbers is None else _of_names(name)
        for numbers, name in zip(_in_layers(tree), named, strict=True)
    ]


def _of_names(found: Named) -> Numbers:
    if not found.is_known:
        return Unknown
    if found.inputs is None or found.outputs is None:
        return None
    return MatrixDimensionNumbers(found.inputs, found.outputs)


def _in_layers(tree: PyTree) -> list:
    is_inner = lambda x: is_leaf(x) or (is_layer(x) and x is not tree)
    # The fields of a layer without weights, such as an MLP, may hold modules of users.
    is_array = lambda path: len(path) == 1 or shapes_of_one(tree)
    numbers = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=is_inner)[0]:
        if is_layer(x):
            numbers += _in_layers(x)
        elif not is_parameter(x):
            numbers.append(None)
        elif is_layer(tree) and is_array(path) and has_field(tree, path[0].name):
            numbers.append(_of_field(tree, path[0].name, x))
        else:
            numbers.append(Own)
    return numbers


def _of_field(layer: Any, name: str, x: Any) -> MatrixDimensionNumbers | None:
    inputs = axes_of_inputs(layer, name)
    if inputs is None or not is_field(layer, name, x):
        return None
    if len(inputs) == 1:
        return _LINEAR
    return MatrixDimensionNumbers(inputs, -len(inputs) - 1)
