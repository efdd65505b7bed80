"""Branches and loops for trees, and for arrays whose values may be known."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax.tree_util as jtu
from jax import lax
from jax.core import Tracer

from ._leaves import disagreement, is_none, keystr
from ._typecheck import no_type_check


_Carry = TypeVar("_Carry")


def while_loop(
    goes_on: Callable[[_Carry], Any], body: Callable[[_Carry], _Carry], start: _Carry
) -> _Carry:
    """`lax.while_loop`; outside `jit`, a Python `while` loop.

    Outside `jit`, JAX would compile the two functions again in each step, because they
    close over arrays.
    """
    now = start
    while not isinstance(more := goes_on(now), Tracer):
        if not more:
            return now
        now = body(now)
    return lax.while_loop(goes_on, body, now)


@no_type_check
def filter_cond(pred, true_fn, false_fn):
    """`lax.cond` for functions that return trees with leaves other than arrays.

    Let `false_fn` return arrays unchanged: they are not copied then. If `true_fn`
    returns them unchanged, XLA on a CPU copies them.

    Outside `jit`, it is a Python `if`: JAX would compile the two functions again in
    each step.

    **Raises:**

    A `ValueError` that names key paths unless both trees have the same structure and
    the same leaves, except for the values of arrays.
    """
    if not isinstance(pred, Tracer):
        return true_fn() if pred else false_fn()
    branches = []

    def arrays_of(fn):
        tree = fn()
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
        others = [_ARRAY if eqx.is_array(x) else x for x in leaves]
        branches.append((tree, treedef, others))
        if len(branches) == 2:  # there is only one if nothing is traced
            _check_same(*branches)
        return treedef.unflatten(x if eqx.is_array(x) else None for x in leaves)

    arrays = lax.cond(pred, lambda: arrays_of(true_fn), lambda: arrays_of(false_fn))
    _, treedef, others = branches[0]
    pairs = zip(treedef.flatten_up_to(arrays), others, strict=True)
    return treedef.unflatten(x if other is _ARRAY else other for x, other in pairs)


_ARRAY = object()


@no_type_check
def _check_same(one, other):
    (tree, treedef, leaves), (other_tree, other_treedef, others) = one, other
    if treedef != other_treedef:
        found = disagreement("one branch", tree, "the other", other_tree)
        raise ValueError(f"{_TWO_RESULTS} {found}")
    for i, (x, y) in enumerate(zip(leaves, others, strict=True)):
        if not _is_same(x, y):
            x, y = ("an array" if z is _ARRAY else repr(z) for z in (x, y))
            raise ValueError(
                f"{_TWO_RESULTS} At `{keystr(tree, i)}`, one has {x}, and the other "
                f"has {y}. A value that changes between steps must be an array from "
                "`init` on, such as `jnp.zeros((), jnp.int32)`; everything else must "
                "stay the same object."
            )


_TWO_RESULTS = (
    "A transformation that is not applied in every step must return the same tree in "
    "both branches, except for the values of arrays."
)


@no_type_check
def _is_same(x, y):
    """Whether two leaves are equal. 1, 1.0 and `True` differ, and NaN equals itself."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, float | complex):
        return repr(x) == repr(y)
    try:
        return bool(x == y)
    except Exception:  # a comparison may raise anything
        return False
