"""Which leaves of a state stand for which parameters."""

import collections
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._trees.leaves import is_leaf, parameters
from .._trees.stored import is_stored
from .._types import Params, State
from ._search import _children


def places_of(init: Callable, params: Params, abstract: PyTree) -> list:
    """For each leaf of a state, the number of its parameter, or `None`.

    A matching position and shape can be a coincidence: every count would match a single
    scalar parameter, and Shampoo's factors a square matrix. So `init` is also called with
    parameters of other shapes, until each leaf has been seen to follow them or not.
    """
    leaves, structure = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
    paths = jtu.tree_leaves_with_path(without_padding(abstract), is_leaf=is_stored)
    fits: dict[str, list[int]] = {}
    for nested, (path, x) in zip(nested_in(structure, abstract), paths, strict=True):
        here = getattr(x, "shape", None)
        near = [i for i in dict.fromkeys(nested) if leaves[i] is not None]
        fits[jtu.keystr(path)] = [i for i in near if leaves[i].shape == here]
    unknown = {(path, i) for path, same in fits.items() for i in same}
    trials: Any = collections.deque((x, range(len(leaves))) for x in _RESIZE)
    calls = 0
    while unknown and trials and calls < _MOST_CALLS:
        resize, some = trials.popleft()
        asked = sorted({i for _, i in unknown if i in some})
        if not asked:
            continue
        calls += 1
        found = _shapes_with(init, params, {i: resize(leaves[i].shape) for i in asked})
        if found is None:
            middle = len(asked) // 2
            halves = [asked[:middle], asked[middle:]] if middle else []
            trials += [(resize, half) for half in halves]
            continue
        for path, i in [*unknown]:
            if i in asked and path in found:
                unknown.remove((path, i))
                if found[path] != resize(leaves[i].shape):
                    fits[path].remove(i)
    return [same[0] if same else None for same in fits.values()]


def _by_axis(resized: Callable[[int, int, int], int]) -> Callable[[tuple], tuple]:
    """Makes other shapes, by a function of a size, the axis and the number of axes."""
    return lambda shape: (
        tuple(resized(n, axis, len(shape)) for axis, n in enumerate(shape)) or (2,)
    )


# In these shapes, a square matrix is not square. There are several, because a leaf of the
# state may be missing for some: if another side is longer, or a size above its limit.
_RESIZE: tuple[Callable[[tuple], tuple], ...] = (
    _by_axis(lambda n, axis, ndim: n + 1 + axis),
    _by_axis(lambda n, axis, ndim: n + ndim - axis),
    _by_axis(lambda n, axis, ndim: n * (2 + axis)),
    _by_axis(lambda n, axis, ndim: n - 1 - axis if n > 1 + ndim else n + 3 + axis),
)

# If `init` does not accept other shapes, for example because the sizes of blocks are
# given, fewer of the parameters get them, in so many calls at most.
_MOST_CALLS = 40


def _shapes_with(
    init: Callable, params: Params, resized: dict[int, tuple]
) -> dict[str, Any] | None:
    """The shapes in the state, by key path, if some parameters have other shapes."""
    arrays, structure = jtu.tree_flatten(params, is_leaf=is_leaf)
    for i, shape in resized.items():
        arrays[i] = jax.ShapeDtypeStruct(shape, arrays[i].dtype)
    try:
        state = guessed(init, structure.unflatten(arrays))
    except Exception:
        return None
    leaves = jtu.tree_leaves_with_path(without_padding(state), is_leaf=is_stored)
    return {jtu.keystr(path): getattr(x, "shape", None) for path, x in leaves}


def guessed(init: Callable, params: Params) -> State:
    """The state for parameters that the user does not have: warnings are about those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eqx.filter_eval_shape(init, params)


def without_padding(state: State) -> State:
    """`state`, where arrays that `eqopt.ZeRO1` has padded have their own shapes."""
    is_padded = lambda x: hasattr(type(x), "_without_padding")
    own = lambda x: x._without_padding if is_padded(x) else x
    return jtu.tree_map(own, state, is_leaf=is_padded)


def nested_in(structure, node):
    """For each leaf of `node`, its positions in the trees of that structure around it.

    The position in the smallest tree comes first: parameters in a tuple also have the
    structure of a chain's state.
    """
    if is_stored(node) or jtu.all_leaves([node]):
        return [[0] if structure == LEAF else []]
    found = [places for _, x in _children(node) for places in nested_in(structure, x)]
    column = parts_like(structure, node)
    if not column:
        return found
    return [[*places, i] for places, i in zip(found, positions_in(column), strict=True)]


def parts_like(structure: Any, node: Any) -> list:
    """The parts of `node` at the leaves of `structure`; none if it has another one."""
    root = structure.node_data()
    # The error of `flatten_up_to` has the text of the whole node, which takes long.
    if root is not None and root[0] is not type(node):
        return []
    try:
        return structure.flatten_up_to(node)
    except (ValueError, TypeError):
        return []


def positions_in(column: list) -> list[int]:
    """For each leaf in the column, the position of its part."""
    each = (jtu.tree_leaves(x, is_leaf=is_stored) for x in column)
    return [i for i, leaves in enumerate(each) for _ in leaves]


LEAF = jtu.tree_structure(0)
