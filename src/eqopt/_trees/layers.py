"""The layers of Equinox: which of their arrays are weights, and how they are stacked."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .leaves import is_leaf, is_parameter
from .named import block_size
from .parts import whole_of


def is_layer(x: Any) -> bool:
    return isinstance(x, eqx.Module) and _kind(type(x)) is not None


@functools.cache
def _kind(cls: type) -> Any:
    """The Equinox layer that a class is, or is a subclass of; `None` if there is none."""
    kinds = (base for base in cls.__mro__ if base.__module__.startswith("equinox.nn."))
    return next(kinds, None)


def has_field(layer: Any, name: str) -> bool:
    """Whether Equinox's layer has this field, not only a subclass of the layer."""
    return name in {field.name for field in dataclasses.fields(_kind(type(layer)))}


_Count = Callable[[Any], int]
_one: _Count = lambda layer: 1
_kernel: _Count = lambda layer: layer.num_spatial_dims + 1
_shape: _Count = lambda layer: len(layer.shape)

# The fields with weights, and the number of their last axes, which a layer sums over.
# The axis before them is the outputs.
_WEIGHTS: dict[type, tuple[tuple[str, ...], Callable]] = {
    eqx.nn.Linear: (("weight",), _one),
    eqx.nn.LSTMCell: (("weight_ih", "weight_hh"), _one),
    eqx.nn.GRUCell: (("weight_ih", "weight_hh"), _one),
} | {
    getattr(eqx.nn, f"Conv{transpose}{n}"): (("weight",), _kernel)
    for transpose in ("", "Transpose")
    for n in ("", "1d", "2d", "3d")
}

# The number of axes of the `weight` of other layers.
_OTHERS: dict[type, _Count] = {
    eqx.nn.Embedding: lambda layer: 2,
    eqx.nn.LayerNorm: _shape,
    eqx.nn.RMSNorm: _shape,
    eqx.nn.GroupNorm: _one,
    eqx.nn.BatchNorm: _one,
}


def axes_of_inputs(layer: Any, name: str) -> tuple[int, ...] | None:
    """The axes of a field that a layer sums over, `None` if the field is not a weight."""
    names, inputs = _WEIGHTS.get(_kind(type(layer)), ((), _one))
    return tuple(range(-inputs(layer), 0)) if name in names else None


def axes_of_one(layer: Any, name: str) -> int | None:
    """The number of axes of a field in a single layer, `None` if it is not known."""
    inputs = axes_of_inputs(layer, name)
    if inputs is not None:
        return len(inputs) + 1
    axes = _OTHERS.get(_kind(type(layer)))
    return None if axes is None or name != "weight" else axes(layer)


Sizes = tuple[int, ...]


class _Found(NamedTuple):
    """What is known of a node.

    - `stacks`: the stack of each leaf, `None` where no layer near it says it.
    - `shared`: the first sizes that all parameters in the node have in common.
    - `known`: the stack that all layers in the node have in common.
    """

    stacks: list[Sizes | None]
    shared: Sizes | None = None
    known: Sizes | None = None


def stacks(tree: PyTree) -> list[Sizes]:
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
    if not is_layer(node):
        return block_size(node) or None
    for name in ("weight", "weight_ih", "weight_hh"):
        axes = axes_of_one(node, name)
        x: Any = getattr(node, name, None)
        if axes is not None and is_parameter(x) and x.ndim >= axes:
            return tuple(x.shape[: x.ndim - axes])
    return None


def _common(sizes: Iterable[Sizes | None]) -> Sizes | None:
    """The longest common start, `None` if there is nothing."""
    known = [x for x in sizes if x is not None]
    columns = zip(*known, strict=False)
    equal = itertools.takewhile(lambda column: len({*column}) == 1, columns)
    return tuple(column[0] for column in equal) if known else None
