"""Converts arrays and counts of one state for another."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._errors import InputError
from ..._jax_internals import is_traced
from ..._trees.leaves import ANOTHER_MODEL, listed
from ..._types import PyTree
from ...tree import get_all_with_path
from .._parts import checked_count


def taken(expected: PyTree, given: PyTree, path: str, given_path: str) -> PyTree:
    """`given` with the structure of `expected`. Masked-out leaves are in neither.

    `()` in one of them stands for an array that is not used. It may have an array in the
    other one.
    """
    is_unused = lambda x: type(x) is tuple and not x
    leaves, treedef = jtu.tree_flatten_with_path(expected, is_leaf=is_unused)
    given_leaves = jtu.tree_leaves_with_path(given, is_leaf=is_unused)
    here, there = ({jtu.keystr(p): x for p, x in y} for y in (leaves, given_leaves))
    unused = {p for y in (here, there) for p, x in y.items() if is_unused(x)}
    missing = [given_path + p for p in here if p not in {*there, *unused}]
    surplus = [given_path + p for p in there if p not in {*here, *unused}]
    if missing or surplus:
        raise InputError(
            None,
            f"The state to convert does not fit the parameters at `{path}`: it has no "
            f"array at {listed(missing) or '-'}, and only it has one at "
            f"{listed(surplus) or '-'}. {ANOTHER_MODEL}",
        )
    used = {p: _array(there[p]) for p in here if p not in unused}
    for p, x in used.items():
        _check_array(here[p], x, path + p, given_path + p)
    return treedef.unflatten(
        _typed_like(x, used[p]) if p in used else x for p, x in here.items()
    )


def _array(x: Any) -> Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def _typed_like(expected: Array, x: Array) -> Array:
    # With another weak type, the second step would be compiled again.
    return jnp.asarray(x, x.dtype) if x.weak_type and not expected.weak_type else x


def _check_array(expected: Any, given: Any, path: str, given_path: str) -> None:
    found, wanted = (f"{x.dtype}{list(np.shape(x))}" for x in (given, expected))
    if found != wanted:
        raise InputError(
            None,
            f"The state to convert has {found} at `{given_path}`, but the optimizer has "
            f"{wanted} at `{path}`. Use the model and the dtypes of the state, such as "
            "`mu_dtype=...`.",
        )


def count_of(given: Any, state: Any) -> Array:
    """The number of steps taken so far: `given`, or the count in `state`."""
    if given is not None:
        return checked_count(given)
    counts = {
        jtu.keystr(path): x
        for name in _COUNTS
        for path, x in get_all_with_path(state, name, lambda path, x: _is_count(x))
    }
    known = {int(x) for x in counts.values() if not is_traced(x)}
    if len(known) > 1:
        found = ", ".join(f"`{path}` is {int(x)}" for path, x in counts.items())
        raise InputError(
            None,
            "A count is needed for a part that has none in the other library, but the "
            f"others differ: {found}. Pass the number of steps: `count=...`.",
        )
    return jnp.asarray(next(iter(counts.values()), 0), jnp.int32)


_COUNTS = ("count", "t")  # as the fields of states are called


def _is_count(x: Any) -> bool:
    is_array = isinstance(x, jax.Array | np.ndarray)
    return is_array and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer)
