"""Tree traversal: leaves, their positions, and whether two trees agree."""

import dataclasses
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._types import PyTree
from .parts import sees_part
from .stored import is_leaf


_SHOWN_PATHS = 5
_SHOWN_LETTERS = 60


def is_none(x: Any) -> bool:
    return x is None


def parameters(tree: PyTree) -> PyTree:
    """`tree` with its inexact arrays (or their `ShapeDtypeStruct`s), the rest `None`."""
    return eqx.filter(tree, is_parameter, is_leaf=is_leaf)


def is_parameter(x: Any) -> bool:
    """Whether `x` is an inexact array, as below, or is stored or described as one."""
    is_array = isinstance(x, _ARRAYS) or getattr(type(x), "_is_stored", False)
    return is_array and jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize > 1


def is_inexact(x: Any) -> bool:
    """Whether `x` is an array of floating or complex numbers with at least 16 bits.

    Floats of 4 or 8 bits are data, like integers: JAX does not promote them.
    `eqx.is_inexact_array` is true for these, and false for NumPy's arrays in bfloat16.
    """
    return isinstance(x, _ARRAYS[:-1]) and is_parameter(x)


_ARRAYS = jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct


def check_parameters(params: PyTree) -> None:
    """Raises an error if `params` has leaves, but no parameter among them.

    A part of a model may be without parameters, and so may be a tree without leaves.
    """
    leaves = jtu.tree_leaves(params)
    if leaves and not (sees_part() or any(map(is_parameter, leaves))):
        path, leaf = jtu.tree_leaves_with_path(params)[0]
        raise InputError(
            f"`params` has no parameters: it has {_found(leaf)} at "
            f"`{jtu.keystr(path) or '(the root)'}`. Pass a model, or another tree with "
            "floating-point or complex arrays."
        )


def map_parameters(fn: Callable, tree: PyTree) -> PyTree:
    """Applies `fn` to each parameter in `tree`; all other leaves become `None`."""
    leaves, treedef = jtu.tree_flatten(parameters(tree), is_leaf=is_leaf)
    return treedef.unflatten(None if x is None else fn(x) for x in leaves)


def flatten_updates(updates: PyTree) -> tuple[list, Any]:
    """The leaves of `updates`, `None` included, checked and converted to JAX arrays."""
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    for i, leaf in enumerate(leaves):
        if leaf is not None and not is_parameter(leaf):
            raise InputError(_not_inexact(keystr(updates, i), leaf))
        if isinstance(leaf, np.ndarray | np.generic):
            leaves[i] = jnp.asarray(leaf)
    return leaves, treedef


def _not_inexact(path: str, leaf: Any) -> str:
    return (
        f"`updates` has {_found(leaf)} at `{path}`, but an update must be a "
        "floating-point or complex array of at least 16 bits, or `None` for a leaf that "
        "is not updated. Compute gradients with `eqx.filter_grad`, or keep only such "
        "arrays: `eqx.filter(grads, eqopt.groups.everything(grads))`."
    )


def _found(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return f"an array of dtype {leaf.dtype}"
    if isinstance(leaf, type):
        return f"the class {leaf.__name__}"
    return f"{briefly(leaf)} of type {type(leaf).__name__}"


def briefly(x: Any) -> str:
    """The value in at most a line, for a message: of a module, only its class."""
    if isinstance(x, eqx.Module):
        return f"a module `{type(x).__name__}`"
    first, *others = repr(x).splitlines() or [""]
    is_short = len(first) <= _SHOWN_LETTERS and not others
    return first if is_short else f"{first[:_SHOWN_LETTERS]}..."


def type_name(dtype: Any, shape: Sequence[int]) -> str:
    """How messages and layouts name a type, such as `float32[2,3]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def align(
    treedef: Any, tree: PyTree, name: str, updates: PyTree, other_name: str = "updates"
) -> list:
    """The subtrees of `tree` at the leaves of `updates`, whose structure is `treedef`.

    **Raises:**

    A `ValueError` that lists key paths, if `tree` has another structure.
    """
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        problem = f"{disagreement(name, tree, other_name, updates)} {ONE_MODEL}"
        raise InputError(problem) from None


ANOTHER_MODEL = (
    "Was the model or the optimizer changed after `init`, or is this the state of "
    "another model?"
)
ONE_MODEL = (
    "Updates, parameters and optimizer state must belong to the same model. "
    f"{ANOTHER_MODEL}"
)


def disagreement(name: str, tree: PyTree, other_name: str, other: PyTree) -> str:
    """Reports where two trees differ: in positions, in shapes, or in nodes."""
    leaves = [jtu.tree_leaves_with_path(t, is_leaf) for t in (tree, other)]
    here, there = ({jtu.keystr(path): x for path, x in pairs} for pairs in leaves)
    message = f"`{name}` has another tree structure than `{other_name}`."
    only_here = [path for path in here if path not in there]
    only_there = [path for path in there if path not in here]
    if only_here:
        message += f" Only `{name}` has a leaf at {listed(only_here)}."
    if only_there:
        message += f" Only `{other_name}` has a leaf at {listed(only_there)}."
    if only_here or only_there:
        return message
    shape = lambda x: None if x is None else np.shape(x)
    shapes = [
        f"`{path}` ({shape(x)} against {shape(there[path])})"
        for path, x in here.items()
        if (eqx.is_array(x) or x is None) and shape(x) != shape(there[path])
    ]
    if shapes:
        return f"{message} Shapes differ at {listed(shapes, quote='')}."
    return f"{message} {_node_difference(tree, other)}"


def _node_difference(tree: PyTree, other: PyTree, path: str = "") -> str:
    """Where two trees with the same leaves have different containers."""
    where = f"At `{path}`" if path else "At the root"
    kind, other_kind = type(tree).__name__, type(other).__name__
    if type(tree) is not type(other):
        return f"{where}, one has a {kind}, the other a {other_kind}."
    below = lambda t: jtu.tree_leaves_with_path(t, is_leaf=lambda x: x is not t)
    for (key, child), (_, other_child) in zip(below(tree), below(other), strict=False):
        structures = {jtu.tree_structure(c, is_leaf) for c in (child, other_child)}
        if len(structures) > 1:
            return _node_difference(child, other_child, path + jtu.keystr(key))
    message = f"{where}, two {kind}s differ in a static field."
    if isinstance(tree, eqx.nn.StateIndex):
        message += (
            " `eqx.nn.make_with_state` names them by their places: call it with the "
            "model alone, and `opt.init(model)` after it."
        )
    return message


def listed(paths: list[str], quote: str = "`") -> str:
    """The first few key paths, and the number of the others."""
    named = (path or "(the root)" for path in paths[:_SHOWN_PATHS])
    shown = ", ".join(f"{quote}{path}{quote}" for path in named)
    more = len(paths) - _SHOWN_PATHS
    return f"{shown} and {more} more" if more > 0 else shown


def places(tree: PyTree) -> PyTree[int]:
    """`tree` with the index of each leaf, counting `None`s, as for `keystr`."""
    treedef = jtu.tree_structure(tree, is_leaf=is_leaf)
    return treedef.unflatten(range(treedef.num_leaves))


@dataclasses.dataclass(frozen=True)
class _Place:
    """The leaf with that number. Static fields of a model may be integers, too."""

    index: int


def selected(tree: PyTree, fn: Callable[[Any], Any], name: str) -> PyTree[int]:
    """The part of `tree` that `fn` returns, with the indices of its leaves, as `places`.

    **Raises:**

    A `TypeError` that begins with `name` if `fn` returns something else.
    """
    found = fn(jtu.tree_map(_Place, places(tree)))
    for x in jtu.tree_leaves(found):
        if not isinstance(x, _Place):
            raise InputError(
                f"{name} must return parts of the model, such as `lambda m: m.layers`, "
                f"but returned {_found(x)}. Static fields are no parameters."
            )
    return jtu.tree_map(lambda x: x.index, found)


def keystr(tree: PyTree, index: int) -> str:
    """The key path of the leaf number `index` of `tree`, counting `None`s."""
    path, _ = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0][index]
    return jtu.keystr(path) or "(the root)"


def select(tree: PyTree, flags: Sequence[bool]) -> PyTree:
    """`tree` with `None` where a flag is false; each leaf and each `None` has a flag."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    pairs = zip(leaves, flags, strict=True)
    return treedef.unflatten(x if flag else None for x, flag in pairs)


def restrict(
    tree: PyTree, like: PyTree, name: str = "params", like_name: str = "updates"
) -> PyTree:
    """`tree` with `None` where `like`, parameters or updates, has it.

    **Raises:**

    A `ValueError` that lists key paths, if they have different structures.
    """
    leaves, treedef = flatten_updates(like)
    pairs = zip(leaves, align(treedef, tree, name, like, like_name), strict=True)
    return treedef.unflatten(None if x is None else y for x, y in pairs)


def is_label(x: Any) -> bool:
    """Whether `x` can name a group of leaves: a hashable leaf of a tree, not `None`."""
    return isinstance(x, Hashable) and jtu.all_leaves([x])


def label_dict(values: dict[Any, Any]) -> dict[Any, Any]:
    """`values` as a dictionary that is a tree, even if its keys have no order.

    JAX sorts the keys of a plain dictionary. This fails for members of an enumeration,
    and for strings mixed with numbers.
    """
    try:
        sorted(values)
    except TypeError:
        return OrderedDict(values)
    return values


def same_leaves(tree: PyTree, other: PyTree) -> bool:
    """Whether two trees hold the same arrays: the same objects, in the same order."""
    leaves, others = (jtu.tree_leaves(x, is_leaf=is_leaf) for x in (tree, other))
    return len(leaves) == len(others) and all(map(operator.is_, leaves, others))
