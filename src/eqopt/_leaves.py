"""Walking trees: which leaves there are, where they stand, and whether trees agree.

Nothing else handles `None`, and nothing else says where two trees differ.
"""

import functools
from collections.abc import Callable
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._types import Mask, Params


_SHOWN_PATHS = 5


@no_type_check  # called once per leaf, like the next two
def is_none(x):
    return x is None


def parameters(tree: PyTree) -> PyTree:
    """`tree` with its inexact arrays (or their `ShapeDtypeStruct`s), the rest `None`."""
    return eqx.filter(tree, is_parameter)


@no_type_check
def is_parameter(x):
    if isinstance(x, jax.ShapeDtypeStruct):
        return jnp.issubdtype(x.dtype, jnp.inexact)
    return eqx.is_inexact_array(x)


def map_parameters(fn: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    """Applies `fn` to every parameter in `tree`, and gives `None` for all other leaves.

    Each of `rest` has the parameters of `tree` at the same places.
    """
    leaves, treedef = jtu.tree_flatten(parameters(tree), is_leaf=is_none)
    columns = [align(treedef, other, "the other tree") for other in rest]
    return treedef.unflatten(
        None if x is None else fn(x, *others)
        for x, *others in zip(leaves, *columns, strict=True)
    )


def flatten_updates(updates: PyTree) -> tuple[list, jtu.PyTreeDef]:
    """The leaves of `updates`, `None` included, each of them checked."""
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_none)
    for i, leaf in enumerate(leaves):
        if leaf is not None and not eqx.is_inexact_array(leaf):
            raise TypeError(_not_inexact(keystr(updates, i), leaf))
    return leaves, treedef


def _not_inexact(path: str, leaf: Any) -> str:
    if eqx.is_array(leaf):
        found = f"an array of dtype {leaf.dtype}"
    else:
        found = f"{leaf!r} of type {type(leaf).__name__}"
    return (
        f"`updates` has {found} at `{path}`, but an update is a floating or complex "
        "array, or `None` where nothing is to be updated. Take gradients with "
        "`eqx.filter_grad`, or keep the arrays of a model alone with "
        "`eqx.filter(tree, eqx.is_inexact_array)`."
    )


def align(treedef: jtu.PyTreeDef, tree: PyTree, name: str) -> list:
    """The subtrees of `tree` at the leaves of `treedef`.

    **Raises:**

    A `ValueError` that lists key paths, if `tree` has another structure.
    """
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        reference = treedef.unflatten(range(treedef.num_leaves))
        raise ValueError(_disagreement(name, tree, reference)) from None


def _disagreement(name: str, tree: PyTree, reference: PyTree) -> str:
    message = f"`{name}` has another tree structure than `updates`."
    found, expected = (
        {jtu.keystr(path): None for path, _ in jtu.tree_leaves_with_path(t, is_none)}
        for t in (tree, reference)
    )
    for problem, here, there in (
        (f"`updates` has no such place as this of `{name}`", found, expected),
        (f"`{name}` has no such place as this of `updates`", expected, found),
    ):
        paths = [path for path in here if path not in there]
        if paths:
            message += f" {problem}: {listed(paths)}."
    if found.keys() == expected.keys():
        message += (
            " Both have leaves at the same places, so their containers differ in type "
            f"or in static fields: {jtu.tree_structure(tree, is_leaf=is_none)} against "
            f"{jtu.tree_structure(reference)}."
        )
    return (
        f"{message} Updates, parameters and optimizer state belong to one model: was "
        "the model changed after `init`, or is this another model's state?"
    )


def listed(paths: list[str]) -> str:
    """The first few of some key paths, quoted, and how many more there are."""
    shown = ", ".join(f"`{path}`" for path in paths[:_SHOWN_PATHS])
    more = len(paths) - _SHOWN_PATHS
    return f"{shown} and {more} more" if more > 0 else shown


def keystr(tree: PyTree, index: int) -> str:
    """The key path of the leaf number `index` of `tree`, counting `None`s."""
    path, _ = jtu.tree_flatten_with_path(tree, is_leaf=is_none)[0][index]
    return jtu.keystr(path) or "(the root)"


@no_type_check
def has_arrays(tree):
    """Whether a subtree that stands at a leaf's place holds a value at all."""
    return tree is not None and any(map(eqx.is_array, jtu.tree_leaves(tree)))


def mask_out(tree: PyTree, mask: Mask, keep: bool = True) -> PyTree:
    """`tree` with `None` wherever `mask` is not `keep`."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
    flags = resolve_mask(mask, tree)
    return treedef.unflatten(
        x if flag is keep else None for x, flag in zip(leaves, flags, strict=True)
    )


def resolve_mask(mask: Mask, tree: Params, name: str = "mask") -> list[bool]:
    """One bool per leaf of `tree` (counting `None`s): `mask`, called and spread out.

    **Arguments:**

    - `mask`: a tree of bools with the structure of `tree` or a prefix of it, or a
        function of the parameters in `tree` (all other leaves `None`) that gives one.
        An `eqx.Module` is a tree, also if it can be called.
    - `tree`: parameters or updates.
    - `name`: what the error messages call the mask.
    """
    if callable(mask) and not isinstance(mask, eqx.Module):
        mask = mask(parameters(tree))
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
    flags = []
    # The mask is the shorter tree, so it is the mask that spreads over `tree`.
    spread = functools.partial(jtu.tree_map, is_leaf=is_none)
    try:
        spread(
            lambda flag, part: flags.extend(
                [flag] * len(jtu.tree_leaves(part, is_leaf=is_none))
            ),
            mask,
            tree,
        )
    except (ValueError, TypeError):
        reference = treedef.unflatten(range(len(leaves)))
        raise ValueError(
            _disagreement(name, mask, reference).replace("updates", "parameters")
        ) from None
    for i, (flag, leaf) in enumerate(zip(flags, leaves, strict=True)):
        if is_parameter(leaf) and not isinstance(flag, bool | np.bool_):
            raise TypeError(
                f"`{name}` has {flag!r} at `{keystr(tree, i)}`: a mask holds the Python "
                "bools `True` and `False`, because it decides which leaves have state."
            )
    return [
        bool(flag) if is_parameter(leaf) else False
        for flag, leaf in zip(flags, leaves, strict=True)
    ]


@no_type_check
def filter_cond(pred, true_fn, false_fn):
    """`lax.cond` for functions that return trees with leaves other than arrays.

    These must be the same in both branches. What the functions close over is not copied.
    """
    rest = []

    def arrays_of(fn):
        arrays, others = eqx.partition(fn(), eqx.is_array)
        rest.append(others)
        return arrays

    arrays = jax.lax.cond(pred, lambda: arrays_of(true_fn), lambda: arrays_of(false_fn))
    return eqx.combine(arrays, rest[0])
