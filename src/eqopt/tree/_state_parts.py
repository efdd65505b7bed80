"""The states inside a state: which classes there are, where, and with which values."""

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._trees.stored import is_stored
from .._types import State
from ._search import _children
from ._slots import declared


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
