"""Which arrays are matrices: by the layers of Equinox, by names, and by stacks."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu

from .._trees.leaves import is_leaf, is_parameter
from .._trees.parts import whole_of
from .._types import PyTree
from .dimension_numbers import MatrixDimensionNumbers, Numbers, Unknown
from .named import Named, named_leaves, named_stack


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
    has_matrices = any(leaves[i].ndim >= 2 for i in own)
    sizes = find_stacks(tree) if has_matrices else [()] * len(leaves)
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
    is_inner = lambda x: is_leaf(x) or (_is_layer(x) and x is not tree)
    # The fields of a layer without weights, such as an MLP, may hold modules of users.
    is_array = lambda path: len(path) == 1 or shapes_of_one(tree)
    numbers = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=is_inner)[0]:
        if _is_layer(x):
            numbers += _in_layers(x)
        elif not is_parameter(x):
            numbers.append(None)
        elif _is_layer(tree) and is_array(path) and _has_field(tree, path[0].name):
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


#
# The layers of Equinox: which of their arrays are weights, and how they are stacked
#


def _is_layer(x: Any) -> bool:
    return isinstance(x, eqx.Module) and _kind(type(x)) is not None


@functools.cache
def _kind(cls: type) -> Any:
    """The Equinox layer that a class is, or is a subclass of; `None` if there is none."""
    kinds = (base for base in cls.__mro__ if base.__module__.startswith("equinox.nn."))
    return next(kinds, None)


def _has_field(layer: Any, name: str) -> bool:
    """Whether Equinox's layer has this field, not only a subclass of the layer."""
    return name in {field.name for field in dataclasses.fields(_kind(type(layer)))}


Sizes = tuple[int, ...]
_Shapes = Callable[[Any], dict[str, Sizes]]


def _of_linear(layer: Any) -> dict[str, Sizes]:
    sizes = layer.out_features, layer.in_features
    return {"weight": tuple(1 if n == "scalar" else n for n in sizes)}


def _of_kernel(layer: Any) -> dict[str, Sizes]:
    inputs = layer.in_channels // layer.groups
    return {"weight": (layer.out_channels, inputs, *layer.kernel_size)}


def _of_cell(layer: Any, gates: int) -> dict[str, Sizes]:
    n = layer.hidden_size
    return {"weight_ih": (gates * n, layer.input_size), "weight_hh": (gates * n, n)}


# The shapes of the weights of a single layer: the outputs, and then the axes that it
# sums over.
_WEIGHTS: dict[type, _Shapes] = {
    eqx.nn.Linear: _of_linear,
    eqx.nn.LSTMCell: lambda x: _of_cell(x, 4),
    eqx.nn.GRUCell: lambda x: _of_cell(x, 3),
} | {
    getattr(eqx.nn, f"Conv{transpose}{n}"): _of_kernel
    for transpose in ("", "Transpose")
    for n in ("", "1d", "2d", "3d")
}

# The same, and the shapes of a `weight` that is not a matrix.
_SHAPES: dict[type, _Shapes] = _WEIGHTS | {
    eqx.nn.Embedding: lambda x: {"weight": (x.num_embeddings, x.embedding_size)},
    eqx.nn.LayerNorm: lambda x: {"weight": x.shape},
    eqx.nn.RMSNorm: lambda x: {"weight": x.shape},
    eqx.nn.GroupNorm: lambda x: {"weight": (x.channels,)},
    eqx.nn.BatchNorm: lambda x: {"weight": (x.input_size,)},
}


def shapes_of_one(layer: Any) -> dict[str, Sizes]:
    """Finds the shape of each weight of a single layer, empty if there are none."""
    find = _SHAPES.get(_kind(type(layer)))
    return {} if find is None else find(layer)


def axes_of_inputs(layer: Any, name: str) -> tuple[int, ...] | None:
    """The axes of a field that a layer sums over, `None` if the field is not a weight."""
    shape = shapes_of_one(layer).get(name)
    if shape is None or _kind(type(layer)) not in _WEIGHTS:
        return None
    return tuple(range(1 - len(shape), 0))


def is_field(layer: Any, name: str, x: Any) -> bool:
    """Whether `x` is this field of a layer.

    In a node that replaces a weight, an array with the shape of the weight counts as it.
    """
    shape = shapes_of_one(layer).get(name)
    is_same = shape is not None and tuple(x.shape[-len(shape) :]) == shape
    return is_same or x is getattr(layer, name)


class _Found(NamedTuple):
    """What is known of a node.

    - `stacks`: the stack of each leaf, `None` where no layer near it says it.
    - `shared`: the first sizes that all parameters in the node have in common.
    - `known`: the stack that all layers in the node have in common.
    """

    stacks: list[Sizes | None]
    shared: Sizes | None = None
    known: Sizes | None = None


def find_stacks(tree: PyTree) -> list[Sizes]:
    """The sizes of the axes that each leaf (counting `None`s) is stacked along, if any.

    A node was made with `eqx.filter_vmap` if the layers of Equinox in it are stacked, and
    all of its parameters have the axes of the stack first. Then so are its own arrays. A
    part of the parameters has the stacks of the whole.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    found = zip(_visit(whole_of(tree)).stacks, leaves, strict=True)
    return [sizes if sizes and is_parameter(x) else () for sizes, x in found]


def _visit(node: PyTree) -> _Found:
    if is_leaf(node) or jtu.all_leaves([node]):
        is_array = is_parameter(node)
        return _Found([None], tuple(node.shape)) if is_array else _Found([()])
    children = jtu.tree_leaves(node, is_leaf=lambda x: x is not node)
    found = [_visit(child) for child in children]
    stacks = [stack for of_child in found for stack in of_child.stacks]
    shared = _common(of_child.shared for of_child in found)
    known = _common([*(of_child.known for of_child in found), _stack_of(node)])
    if known is not None:
        stack = _common([known, shared])
        stacks = [stack if x is None else x for x in stacks]
    return _Found(stacks, shared, known)


def _stack_of(node: Any) -> Sizes | None:
    """The sizes of the stack of a layer, `None` if it shows no stack."""
    if not _is_layer(node):
        return named_stack(node) or None
    for name, shape in shapes_of_one(node).items():
        for x in jtu.tree_leaves(getattr(node, name), is_leaf=is_leaf):
            if is_parameter(x) and x.ndim >= len(shape) and is_field(node, name, x):
                return tuple(x.shape[: x.ndim - len(shape)])
    return None


def _common(sizes: Iterable[Sizes | None]) -> Sizes | None:
    """The longest common start, `None` if there is nothing."""
    known = [x for x in sizes if x is not None]
    columns = zip(*known, strict=False)
    equal = itertools.takewhile(lambda column: len({*column}) == 1, columns)
    return tuple(column[0] for column in equal) if known else None
