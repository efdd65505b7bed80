"""The parameter to which each leaf of a state belongs, also one of another shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._trees.leaves import is_leaf, parameters
from .._trees.stored import is_stored
from .._types import Params, State
from ._places import LEAF, parts_like, positions_in
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
    if structure == LEAF:
        return [0] * len(jtu.tree_leaves(state, is_leaf=is_stored))
    is_state = is_state_beside(params)

    def found_in(node: Any) -> _Found:
        if is_stored(node) or jtu.all_leaves([node]):
            return _Found([None])
        parts = [found_in(child) for _, child in _children(node)]
        owners = [owner for part in parts for owner in part.owners]
        has_states = any(part.has_states for part in parts)
        has_slots = any(part.has_slots for part in parts)
        if column := parts_like(structure, node):
            if not (has_states or has_slots):
                owners = positions_in(column)
            has_slots |= all(map(_is_like, column, arrays))
        return _Found(owners, has_states or is_state(node), has_slots)

    return found_in(state).owners


def _is_like(x: Any, p: Any) -> bool:
    return x is p is None or (p is not None and getattr(x, "shape", None) == p.shape)
