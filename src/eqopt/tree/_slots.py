"""The slots of a state: which of its trees belong to the parameters."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._arguments.annotations import kinds
from .._trees.leaves import is_leaf, parameters
from .._trees.stored import is_stored
from .._types import Params, State
from ._search import _children, _name


TREES = ("exact", "nonnegative", "unknown")
"""The kinds of fields that may hold a tree like the parameters."""

# Fields that hold the states of inner transformations, whatever their class declares.
_INNER = ("inner_state", "inner_states")


class Slot(NamedTuple):
    """A slot of a state, or a leaf that is in no slot.

    - `parts`: what a slot has for each parameter, counting `None`s; `None` for a leaf.
    - `kind`: what the field declares.
    """

    path: tuple
    parts: list | None
    kind: str


def slots_of(params: Params, state: State) -> Iterator[Slot]:
    """The slots of a state, and the leaves in no slot, in order.

    A slot is a field of a state with the structure of the parameters, unless the class
    declares a number or another state. A tree that no field declares is a slot if its
    arrays have the shapes of the parameters.
    """
    arrays, structure = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
    root = structure.node_data()

    def parts_of(node: Any, kind: str) -> list | None:
        # The error of `flatten_up_to` has the text of the whole node, which takes long.
        if root is not None and root[0] is not type(node):
            return None
        try:
            parts = structure.flatten_up_to(node)
        except (ValueError, TypeError):
            return None
        if kind == "state":
            return parts if all(map(_is_like, parts, arrays)) else None
        return parts if kind in (*TREES, "per_leaf") else None

    def walk(path: tuple, node: Any, kind: str) -> Iterator[Slot]:
        parts = parts_of(node, kind)
        if parts is not None or is_stored(node) or jtu.all_leaves([node]):
            yield Slot(path, parts, kind)
            return
        for key, child, below in declared(node, kind):
            yield from walk((*path, key), child, below)

    return walk((), without_padding(state), "state")


def declared(node: Any, kind: str = "state") -> list[tuple[Any, Any, str]]:
    """The children of a node of this kind: their keys, values and kinds."""
    fields = kinds(type(node)) | dict.fromkeys(_INNER, "state")
    other = "state" if kind in TREES else kind
    return [(key, x, fields.get(str(_name(key)), other)) for key, x in _children(node)]


def _is_like(x: Any, p: Any) -> bool:
    return x is None or (p is not None and getattr(x, "shape", None) == p.shape)


class Found(NamedTuple):
    """A leaf of a state.

    - `owner`: the position of its parameter, counting `None`s; `None` without one.
    - `place`: the same if it stands for the parameter: it has the same shape, and is
        not in a tuple, such as factors.
    - `kind`: what the field declares.
    """

    owner: int | None
    place: int | None
    kind: str


def found_in(params: Params, state: State) -> Iterator[Found]:
    """The leaves of a state, with the parameters that they belong to."""
    arrays = jtu.tree_leaves(parameters(params), is_leaf=is_leaf)
    for _, parts, kind in slots_of(params, state):
        if parts is None:
            yield Found(None, None, kind)
        for i, part in enumerate(parts or ()):
            is_alone = kind != "per_leaf" and type(part) not in (tuple, list, dict)
            for x in jtu.tree_leaves(part, is_leaf=is_stored):
                stands = is_alone and _is_like(x, arrays[i])
                yield Found(i, i if stands else None, kind)


def owners_of(params: Params, state: State) -> list[int | None]:
    """For each leaf of a state, the position of the parameter that it belongs to."""
    return [x.owner for x in found_in(params, state)]


def without_padding(state: State) -> State:
    """`state`, where arrays that `eqopt.ZeRO1` has padded have their own shapes."""
    is_padded = lambda x: hasattr(type(x), "_without_padding")
    own = lambda x: x._without_padding if is_padded(x) else x
    return jtu.tree_map(own, state, is_leaf=is_padded)
