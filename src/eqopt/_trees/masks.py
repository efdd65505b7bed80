"""Masks, labels and other values for leaves: trees, prefixes of trees, or functions."""

from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._jax_internals import is_traced
from .._types import Mask, Params, PyTree
from .leaves import disagreement, is_none, is_parameter, keystr, parameters, select
from .parts import seeing_part
from .stored import is_leaf, shapes_if_stored


def mask_out(
    tree: PyTree, mask: Mask, params: Params | None, keep: bool = True
) -> PyTree:
    """`tree` with `None` wherever `mask` is not `keep`."""
    return select(tree, [flag is keep for flag in resolve_mask(mask, tree, params)])


def resolve_mask(mask: Mask | None, tree: PyTree, params: Params | None) -> list[bool]:
    """One bool per leaf of `tree` (counting `None`s): `mask`, called and broadcast.

    It is false for leaves that are not parameters. Without a mask, it is true for all
    parameters. The arguments are the same as for `resolve`.
    """
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    if mask is None:
        return [is_parameter(leaf) for leaf in leaves]
    pairs = [*zip(leaves, resolve("mask", mask, tree, params), strict=True)]
    for i, (leaf, flag) in enumerate(pairs):
        if is_parameter(leaf) and not _is_bool(flag):
            raise InputError(
                f"`mask` has {flag!r} at `{keystr(tree, i)}`, but must hold `True` or "
                "`False`, because it determines which leaves have state. The functions "
                "in `eqopt.groups` make masks, such as `eqopt.groups.path('bias')`."
            )
    return [is_parameter(leaf) and bool(flag) for leaf, flag in pairs]


def both(first: Mask, second: Mask) -> Mask:
    """The mask of the leaves that each of two masks chooses."""

    def mask(params: Params) -> PyTree:
        flags = [resolve_mask(x, params, params) for x in (first, second)]
        treedef = jtu.tree_structure(params, is_leaf=is_leaf)
        return treedef.unflatten(map(all, zip(*flags, strict=True)))

    return mask


def _is_bool(flag: Any) -> bool:
    """Whether it is a bool of Python, or one of NumPy or JAX with a known value."""
    is_array = isinstance(flag, np.bool_ | np.ndarray | jax.Array)
    is_scalar = is_array and flag.shape == () and flag.dtype == bool
    return isinstance(flag, bool) or (is_scalar and not is_traced(flag))


def is_function(given: Any) -> bool:
    """Whether `given` is a function of the parameters, rather than a tree of values.

    JAX tree nodes, such as an `eqx.Module` or another registered dataclass, count as
    trees even if they are callable.
    """
    return callable(given) and jtu.all_leaves([given])


def resolve(name: str, given: Any, tree: PyTree, params: Params | None) -> list:
    """The value in `given` for each leaf of `tree` (counting `None`s).

    **Arguments:**

    - `name`: the name of the argument, for errors.
    - `given`: a tree with the structure of `tree` or a prefix of it, or a function of
        the parameters (all other leaves `None`) that returns one. See `is_function`.
    - `tree`: parameters or updates.
    - `params`: the argument of `given` if that is a function. If `None`, it is `tree`,
        which are updates, maybe of a part of the parameters.
    """
    if is_function(given):
        whole = shapes_if_stored(parameters(tree if params is None else params))
        if params is None:  # updates may lack some parameters
            given = seeing_part(whole)(given)
        try:
            given = given(whole)
        except AttributeError as error:
            if error.obj is not None and error.obj is not whole:
                raise
            raise InputError(
                f"`{name}` is called once, with the tree of all parameters, and `None` "
                f"elsewhere: {error}. For a condition on each array, pass "
                "`eqopt.groups.leaf(condition)`."
            ) from error
    spread = []
    count = lambda branch: len(jtu.tree_leaves(branch, is_leaf=is_leaf))
    extend = lambda value, branch: spread.extend([value] * count(branch))
    try:
        jtu.tree_map(extend, given, tree, is_leaf=is_none)
    except (ValueError, TypeError):
        raise InputError(
            f"{disagreement(name, given, 'params', tree)} `{name}` must have the "
            "structure of the parameters, or a prefix of it, in which one value "
            "stands for a whole subtree."
        ) from None
    return spread
