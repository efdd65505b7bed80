"""Arrays with named axes, as in haliax: what the names say about their axes.

haliax is not imported. A named array is a node of a tree with the fields `array` and
`axes`, and an axis has a `name` and a `size`. Layers name the axes that they sum over in
static fields, as the layers of haliax do: `In` and `Out`, `Vocab` and `Embed`, `axis`,
and `Block` for a stack.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu

from .._trees.leaves import is_leaf
from .._types import PyTree


def is_named(x: Any) -> bool:
    axes = getattr(x, "axes", None)
    return isinstance(axes, tuple) and hasattr(x, "array") and all(map(_is_axis, axes))


def _is_axis(x: Any) -> bool:
    return hasattr(x, "name") and hasattr(x, "size")


class Named(NamedTuple):
    """What is known of an array with named axes.

    **Attributes:**

    - `names`: the names of its axes.
    - `inputs`, `outputs`: the axes that its layer sums over, and the axes of the outputs
        of the layer; `None` if the array is not a matrix, or if this is not known.
    - `stack`: the axes of the stacks that it is in.
    - `is_known`: whether the layer says what the array is.
    - `vectors`: of an embedding, the axes of each vector.
    """

    names: tuple[str, ...]
    stack: tuple[int, ...]
    inputs: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = None
    is_known: bool = True
    vectors: tuple[int, ...] | None = None


def named_leaves(tree: PyTree) -> list[Named | None]:
    """For each leaf (counting `None`s), what its names say; `None` without names."""
    nodes = jtu.tree_leaves(tree, is_leaf=lambda x: is_leaf(x) or is_named(x))
    return _visit(tree, None, ()) if any(map(is_named, nodes)) else [None] * len(nodes)


def _visit(node: Any, owner: Any, blocks: tuple[str, ...]) -> list[Named | None]:
    if is_named(node):
        return [_of(node, owner, blocks)]
    if is_leaf(node) or jtu.all_leaves([node]):
        return [None]
    if isinstance(node, eqx.Module):
        owner, blocks = node, (*blocks, *_names(node, "Block"))
    children = jtu.tree_leaves(node, is_leaf=lambda x: x is not node)
    return [found for child in children for found in _visit(child, owner, blocks)]


def _names(owner: Any, field: str) -> tuple[str, ...]:
    """The names of the axes in a field of a layer, empty if there are none."""
    axes: Any = getattr(owner, field, ())
    axes = axes if isinstance(axes, tuple | list) and not _is_axis(axes) else (axes,)
    return tuple(axis.name for axis in axes if _is_axis(axis))


def _of(array: Any, owner: Any, blocks: tuple[str, ...]) -> Named:
    names = tuple(axis.name for axis in array.axes)
    own = tuple(name for name in names if name not in blocks)
    places = lambda some: tuple(i for i, name in enumerate(names) if name in some)
    found = Named(names, places(blocks))
    if hasattr(owner, "In") and hasattr(owner, "Out"):
        inputs, outputs = _names(owner, "In"), _names(owner, "Out")
        if not {*inputs} & {*own}:
            return found._replace(vectors=())  # a bias, with a block for each element
        if hasattr(owner, "kernel_size"):
            inputs = tuple(name for name in own if name not in outputs)
        is_known = {*own} == {*inputs, *outputs}
        sides = places(inputs), places(outputs)
        return found._replace(inputs=sides[0], outputs=sides[1], is_known=is_known)
    if {*_names(owner, "Vocab")} & {*own}:
        return found._replace(vectors=places(_names(owner, "Embed")))
    is_norm = {*own} <= {*_names(owner, "axis")}
    return found._replace(is_known=len(own) < 2 or is_norm)


def named_stack(node: Any) -> tuple[int, ...]:
    """The size of the stack of layers with named axes that a node is, empty if none."""
    blocks = _names(node, "Block") if isinstance(node, eqx.Module) else ()
    arrays = jtu.tree_leaves(node, is_leaf=is_named) if blocks else []
    first = [x.axes[0] for x in arrays if is_named(x) and x.axes]
    return tuple(axis.size for axis in first if axis.name in blocks)[:1]
