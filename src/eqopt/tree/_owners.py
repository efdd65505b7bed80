"""The parameter to which each leaf of a state belongs, also one of another shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._trees.leaves import is_leaf, parameters
from .._trees.stored import is_stored
from .._types import Params, State
from ._search import _children


def is_state_beside(params: Params) -> Callable[[Any], bool]:
    """Whether a node is a state: its name ends with "State", and it is not in `params`.

    `params` may be `None`. Models are also named like this, and slots are like the model.
    """
    seen: set = set()
    jtu.tree_leaves(params, is_leaf=lambda x: bool(seen.add(_name(x))))
    return lambda x: type(x).__name__.endswith("State") and _name(x) not in seen


def _name(x: Any) -> tuple[str, str]:
    # Not the class itself: a notebook may have executed its definition again.
    return type(x).__module__, type(x).__qualname__


class _Found(NamedTuple):
    owners: list
    has_states: bool = False
    has_slots: bool = False


def owners_of(params: Params, state: State) -> list[int | None]:
    """For each leaf of `state`, the index of its parameter, counting `None`s.

    A slot is a tree like the parameters, with arrays of the same shapes. Other trees with
    the structure of the parameters hold something else for each, such as factors. The
    state of a chain has the structure of parameters in a tuple, and so do the two factors
    of a matrix. So such a tree must hold neither states nor slots, and be the largest.
    """
    arrays, structure = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
    if structure == _LEAF:
        return [0] * len(jtu.tree_leaves(state, is_leaf=is_stored))
    root, is_state = structure.node_data(), is_state_beside(params)

    def found_in(node: Any) -> _Found:
        if is_stored(node) or jtu.all_leaves([node]):
            return _Found([None])
        parts = [found_in(child) for _, child in _children(node)]
        owners = [owner for part in parts for owner in part.owners]
        has_states = any(part.has_states for part in parts)
        has_slots = any(part.has_slots for part in parts)
        # The error of `flatten_up_to` has the text of the whole node, which takes long.
        if root is None or root[0] is type(node):
            column = _column(structure, node)
            is_slot = bool(column) and all(map(_is_like, column, arrays))
            if column and not (has_states or has_slots):
                each = (jtu.tree_leaves(x, is_leaf=is_stored) for x in column)
                owners = [i for i, leaves in enumerate(each) for _ in leaves]
            has_slots |= is_slot
        return _Found(owners, has_states or is_state(node), has_slots)

    return found_in(state).owners


def _column(structure: Any, node: Any) -> list:
    try:
        return structure.flatten_up_to(node)
    except (ValueError, TypeError):
        return []


def _is_like(x: Any, p: Any) -> bool:
    return x is p is None or (p is not None and getattr(x, "shape", None) == p.shape)


_LEAF = jtu.tree_structure(0)
