"""The states inside a state: which classes there are, where, and with which values."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._trees.stored import is_stored
from .._types import Params, State
from ._search import _children, _name


# Fields that hold the states of inner transformations, of any class. A field with
# another name does if there is a class in it whose name ends with "State", and which is
# not a part of the model.
_INNER = ("inner_state", "inner_states")


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


def is_state_beside(params: Params) -> Callable[[Any], bool]:
    """Whether a node is a state: its name ends with "State", and it is not in `params`.

    `params` may be `None`. Models are also named like this, and slots are like the model.
    """
    seen: set = set()
    jtu.tree_leaves(params, is_leaf=lambda x: bool(seen.add(_class(x))))
    return lambda x: type(x).__name__.endswith("State") and _class(x) not in seen


def _class(x: Any) -> tuple[str, str]:
    # Not the class itself: a notebook may have executed its definition again.
    return type(x).__module__, type(x).__qualname__


def parts_of(state: State, params: Params | None = None) -> list[Part]:
    """All parts of a state that have values, a wrapper before its inner state.

    `params`: the parameters, whose classes are not states, if they are known.
    """
    is_state = is_state_beside(params)
    return [part for part in _parts((), state, is_state) if part.values]


def _parts(path: tuple, node: Any, is_state: Callable) -> Iterator[Part]:
    if is_stored(node) or jtu.all_leaves([node]):
        yield Part(path, "array", _values(path, node))
        return
    children = [((*path, key), child) for key, child in _children(node)]
    if _is_container(node):
        for place, child in children:
            yield from _parts(place, child, is_state)
        return
    has_states = lambda child: _has_states(child, is_state)
    inner = [_name(at[-1]) in _INNER or has_states(child) for at, child in children]
    pairs = [*zip(children, inner, strict=True)]
    own = [_values(*child) for child, is_inner in pairs if not is_inner]
    yield Part(path, type(node), {k: x for values in own for k, x in values.items()})
    for child, is_inner in pairs:
        if is_inner:
            yield from _parts(*child, is_state)


def _is_container(node: Any) -> bool:
    is_plain = isinstance(node, tuple | list | dict) and not hasattr(node, "_fields")
    return node is None or is_plain


def _has_states(node: Any, is_state: Callable) -> bool:
    """Whether there is a state in `node`, which may be tuples, lists and dictionaries."""
    if _is_container(node):
        return any(_has_states(child, is_state) for _, child in _children(node))
    return is_state(node)


def _values(path: tuple, node: Any) -> dict[tuple, Any]:
    leaves = jtu.tree_leaves_with_path(node, is_leaf=is_stored)
    return {(*path, *rest): x for rest, x in leaves if is_value(x)}


def is_value(x: Any) -> bool:
    """Whether a leaf of a state is an array, a stored array, or a number."""
    return hasattr(x, "dtype") or isinstance(x, int | float | complex)
