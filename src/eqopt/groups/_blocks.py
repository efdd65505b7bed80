import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax.tree_util as jtu

from .._arguments.checks import check_fields
from .._arguments.construction import Explained
from .._errors import InputError
from .._matrices import (
    MatrixDimensionNumbers,
    Named,
    axes_of,
    axes_of_inputs,
    check_known,
    find_stacks,
    is_field,
    named_leaves,
    shapes_of_one,
)
from .._trees.leaves import is_leaf, is_parameter, keystr
from .._trees.masks import resolve
from .._trees.stored import shapes_if_stored
from .._typecheck import checked
from .._types import Params, PyTree, Size
from ._rules import MatrixRules


@dataclasses.dataclass(frozen=True)
class BlockAxes(metaclass=Explained):
    """Divides an array into blocks, such as the rows of a matrix.

    [`eqopt.AdamMini`][] keeps one second moment for each block.

    !!! example

        ```python
        eqopt.groups.BlockAxes(-1)  # a block for each row
        eqopt.groups.BlockAxes((-2, -1))  # for each matrix in a stack
        eqopt.groups.BlockAxes((-2, -1), 8)  # eight blocks, of equally many rows
        eqopt.groups.BlockAxes(())  # for each element
        eqopt.groups.BlockAxes()  # one block: the whole array
        ```

    **Arguments:**

    - `axes`: the axis, or a tuple of axes, along which a block extends. Negative axes
        count from the end. There is a block for each index of all other axes. `None`
        means all axes.
    - `groups`: the number of blocks of equal size into which the first of `axes` is
        split. It must divide the size of that axis. Defaults to 1.

    **Raises:**

    A `ValueError` if `groups` is less than 1.
    """

    axes: int | tuple[int, ...] | None = None
    groups: Size = 1

    def __post_init__(self) -> None:
        check_fields(self)


# A tree of `BlockAxes` like the parameters or a prefix of it, or a function of the
# parameters that returns one. (It is checked below, for a better message.)
Blocks: TypeAlias = PyTree | Callable[[Params], PyTree]

ELEMENTS, WHOLE = BlockAxes(()), BlockAxes()


@checked  # a default, so it is the same function from the start
def layer_blocks(params: Params) -> PyTree[BlockAxes]:
    """The blocks of Adam-mini: one for each neuron and each attention head.

    - Weights of `eqx.nn.Linear`, convolutions and recurrent cells: a block for each
        output, and a block for each vector of an `eqx.nn.Embedding`.
    - Weights of the query and key projections of an `eqx.nn.MultiheadAttention`: a block
        for each head.
    - Biases of all these layers, and of norms: a block for each element.
    - Scales of norms, and all arrays elsewhere: one block for the array.

    Layers are recognised by their class, including subclasses. In a stack of layers,
    made with `eqx.filter_vmap`, each layer has its own blocks. So do arrays next to
    a stacked layer, as in [`eqopt.groups.layer_matrices`][].

    !!! example

        ```python
        print(eqopt.groups.table(eqopt.groups.layer_blocks, model))
        ```

    **Arguments:**

    - `params`: the model.

    **Returns:**

    A tree of [`eqopt.groups.BlockAxes`][] with the structure of `params`, and `None` at
    leaves that are not parameters.
    """
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    blocks = zip(_of_layers(params), leaves, find_stacks(params), strict=True)
    named = named_leaves(params)
    return treedef.unflatten(
        _outside(name, x, len(stack)) if b is WHOLE else b
        for (b, x, stack), name in zip(blocks, named, strict=True)
    )


def _outside(name: Named | None, x: Any, stack: int) -> BlockAxes:
    """The blocks of an array outside the layers of Equinox, which may have names."""
    if name is None:
        return _after(stack, x) if stack else WHOLE
    inputs = name.vectors if name.inputs is None else name.inputs
    if inputs is None:
        inputs = tuple(i for i in range(x.ndim) if i not in name.stack)
    return BlockAxes(inputs)


def _after(stack: int, x: Any) -> BlockAxes:
    """One block for each entry of a stack."""
    return BlockAxes(tuple(range(stack - x.ndim, 0)))


def _of_layers(tree: PyTree, heads: int = 1) -> list[BlockAxes | None]:
    is_inner = lambda x: is_leaf(x) or (isinstance(x, _LAYERS) and x is not tree)
    blocks = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=is_inner)[0]:
        name = path[0].name if isinstance(tree, _LAYERS) else ""
        if isinstance(x, _LAYERS):
            blocks += _of_layers(x, _heads(tree, name) if len(path) == 1 else 1)
        elif not is_parameter(x):
            blocks.append(None)
        else:
            is_own = not name or not is_field(tree, name, x)
            blocks.append(WHOLE if is_own else _of_field(tree, name, heads))
    return blocks


_NORMS = eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm
_CONVOLUTIONS = eqx.nn.Conv, eqx.nn.ConvTranspose
_WEIGHTED = eqx.nn.Linear, *_CONVOLUTIONS, eqx.nn.LSTMCell, eqx.nn.GRUCell
_LAYERS = eqx.nn.MultiheadAttention, eqx.nn.Embedding, *_NORMS, *_WEIGHTED


def _heads(layer: Any, name: str) -> int:
    is_split = isinstance(layer, eqx.nn.MultiheadAttention)
    return layer.num_heads if is_split and name in ("query_proj", "key_proj") else 1


def _of_field(layer: Any, name: str, heads: int) -> BlockAxes:
    """The blocks of an array in this field of a layer."""
    if isinstance(layer, _NORMS) and name == "weight":
        return BlockAxes(tuple(range(-len(shapes_of_one(layer)[name]), 0)))
    if isinstance(layer, eqx.nn.Embedding):
        return BlockAxes(-1)
    inputs = axes_of_inputs(layer, name)
    if inputs is None:
        return ELEMENTS
    return BlockAxes(inputs) if heads == 1 else BlockAxes((-2, -1), heads)


def block_shapes(given: Blocks, params: Params) -> list[tuple[int, ...] | None]:
    """The number of blocks along each axis of each leaf (counting `None`s)."""
    params = shapes_if_stored(params)
    leaves = jtu.tree_leaves(params, is_leaf=is_leaf)
    if isinstance(given, MatrixRules):
        given = _by_rules(given, params, leaves)
    blocks = resolve("block_axes", given, params, params)
    return [
        _shape_of(b, x, params, i) if is_parameter(x) else None
        for i, (b, x) in enumerate(zip(blocks, leaves, strict=True))
    ]


def _by_rules(rules: MatrixRules, params: Params, leaves: list[Any]) -> PyTree:
    """`layer_blocks`, with a block for each output of what rules call a matrix."""
    blocks, treedef = jtu.tree_flatten(layer_blocks(params), is_leaf=is_leaf)
    decided = rules.decide(params)
    check_known("block_axes", params, leaves, [numbers for numbers, _ in decided])
    for i, (numbers, stack) in enumerate(decided):
        is_split = numbers is not None and numbers.has_blocks
        if numbers is not None and (is_split or blocks[i] is WHOLE):
            blocks[i] = numbers
        elif stack and blocks[i] is WHOLE:
            blocks[i] = _after(stack, leaves[i])
    return treedef.unflatten(blocks)


def _shape_of(blocks: Any, x: Any, params: Params, index: int) -> tuple[int, ...]:
    if isinstance(blocks, MatrixDimensionNumbers):
        return _of_matrix(blocks, x, keystr(params, index))
    if not isinstance(blocks, BlockAxes):
        raise InputError(
            f"`block_axes` has {blocks!r} at `{keystr(params, index)}`, but must hold "
            "`eqopt.groups.BlockAxes`."
        )
    given = range(x.ndim) if blocks.axes is None else blocks.axes
    given = (given,) if isinstance(given, int) else tuple(given)
    axes = [axis + x.ndim if axis < 0 else axis for axis in given]
    is_distinct = len({*axes}) == len(axes) and {*axes} <= {*range(x.ndim)}
    size = x.shape[axes[0]] if is_distinct and axes else 1
    if not is_distinct or size % blocks.groups:
        raise InputError(
            f"{blocks} does not fit `{keystr(params, index)}` of shape {x.shape}: `axes` "
            "must be distinct axes of the array, and `groups` must divide the size of "
            "the first one."
        )
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    if blocks.groups > 1:
        shape[axes[0]] = blocks.groups
    return tuple(shape)


def _of_matrix(numbers: MatrixDimensionNumbers, x: Any, path: str) -> tuple[int, ...]:
    """A block for each output, or, if the outputs are in blocks, for each of these."""
    axes = axes_of(numbers, x, path)
    shape = [1 if axis in axes.reduction else n for axis, n in enumerate(x.shape)]
    for axis, sizes in axes.blocks:
        if len({*sizes}) > 1:
            raise InputError(
                f"{numbers} has blocks of several sizes for `{path}`, but `block_axes` "
                "needs equal blocks. Pass their number, such as the number of heads."
            )
        if axis in axes.output:
            shape = [1 if i in axes.output else n for i, n in enumerate(shape)]
    for axis, sizes in axes.blocks:
        shape[axis] = len(sizes)
    return tuple(shape)
