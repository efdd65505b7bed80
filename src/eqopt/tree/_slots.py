"""What is in a state: slots, which belong to the parameters, and other states."""

from collections.abc import Container, Iterator, Mapping
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


class Part(NamedTuple):
    """A state inside a state, without the states inside it.

    **Attributes:**

    - `path`: its key path.
    - `kind`: its class; for an array outside any class, the string `"array"`.
    - `values`: its arrays, stored arrays and numbers, by their key paths in the whole
        state.
    """

    path: tuple
    kind: Any
    values: Mapping[tuple, Any]

    @property
    def name(self) -> str:
        return getattr(self.kind, "__name__", self.kind)

    @property
    def key(self) -> Any:
        # Not the class itself: a notebook may have executed its definition again.
        kind = self.kind
        return kind if isinstance(kind, str) else (kind.__module__, kind.__qualname__)

    def labels(self, start: int = 0) -> tuple:
        """The labels of groups and names of parts on its path, after `start` keys.

        These mean the same in another chain or wrapper: positions and fields do not.
        """
        return tuple(x.key for x in self.path[start:] if isinstance(x, jtu.DictKey))

    def without(self, values: Container[tuple]) -> "Part":
        """This part without the values at these key paths."""
        return self._replace(
            values={path: x for path, x in self.values.items() if path not in values}
        )


def parts_of(state: State) -> list[Part]:
    """All parts of a state that have values, a wrapper before its inner state."""
    return [part for part in _parts((), state) if part.values]


def _parts(path: tuple, node: Any) -> Iterator[Part]:
    if is_stored(node) or jtu.all_leaves([node]):
        yield Part(path, "array", _values(path, node))
    elif _is_container(node):
        for key, child in _children(node):
            yield from _parts((*path, key), child)
    else:
        children = [((*path, key), x, kind) for key, x, kind in declared(node)]
        inner = [
            (at, x) for at, x, kind in children if kind == "state" and _has_state(x)
        ]
        places = {at for at, _ in inner}
        own = [_values(at, x) for at, x, _ in children if at not in places]
        yield Part(
            path, type(node), {k: x for values in own for k, x in values.items()}
        )
        for at, x in inner:
            yield from _parts(at, x)


def _is_container(node: Any) -> bool:
    is_plain = isinstance(node, tuple | list | dict) and not hasattr(node, "_fields")
    return node is None or is_plain


def _has_state(tree: Any) -> bool:
    """Whether a node of the tree is a state: its name ends with "State"."""
    is_state = lambda x: type(x).__name__.endswith("State")
    return any(map(is_state, jtu.tree_leaves(tree, is_leaf=is_state)))


def _values(path: tuple, node: Any) -> dict[tuple, Any]:
    leaves = jtu.tree_leaves_with_path(node, is_leaf=is_stored)
    is_value = lambda x: hasattr(x, "dtype") or isinstance(x, int | float | complex)
    return {(*path, *rest): x for rest, x in leaves if is_value(x)}
