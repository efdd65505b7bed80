"""Branches and loops for trees, and for arrays whose values may be known.

Inside `jax.shard_map`, JAX tracks which arrays may differ between devices, and both
branches and all rounds of a loop must agree about it. Here, they are made to agree: an
array may differ as soon as it does in one of them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax

from .._errors import InputError
from .._jax_internals import is_traced, release, varying_axes
from .sharding import is_in_shard_map
from .stored import is_elsewhere


_Carry = TypeVar("_Carry")


def while_loop(
    goes_on: Callable[[_Carry], Any], body: Callable[[_Carry], _Carry], start: _Carry
) -> _Carry:
    """`lax.while_loop`; outside `jit`, a Python `while` loop.

    Outside `jit`, JAX would compile the two functions again in each step, because they
    close over arrays.
    """
    now = start
    while not is_traced(more := goes_on(now)):
        if not more:
            return now
        now = body(now)
    varied = rounds_alike(body, now)
    return lax.while_loop(goes_on, lambda now: varied(body(now)), varied(now))


def filter_cond(pred, true_fn, false_fn):
    """`lax.cond` for functions that return trees with leaves other than arrays.

    Let `false_fn` be the branch that does less, and returns arrays unchanged: they are
    not copied then, and it is compiled twice (see `cond`).

    Outside `jit`, it is a Python `if`: JAX would compile the two functions again in
    each step.

    **Raises:**

    A `ValueError` that names the key path if a leaf that is no array differs. JAX raises
    a `TypeError` if structures or types of arrays differ.
    """
    if not is_traced(pred):
        return true_fn() if pred else false_fn()
    others = {}

    def arrays_of(fn):
        tree = fn()
        _check_is_on_device(tree)
        arrays, others[fn] = eqx.partition(tree, eqx.is_array)
        return arrays

    arrays = cond(pred, lambda: arrays_of(true_fn), lambda: arrays_of(false_fn))
    _check_same(others[true_fn], others[false_fn])
    return eqx.combine(arrays, others[true_fn])


def _check_same(tree, other):
    is_leaf = lambda x: x is None
    leaves = jtu.tree_leaves_with_path(tree, is_leaf)
    for (path, x), y in zip(leaves, jtu.tree_leaves(other, is_leaf), strict=True):
        if x is not y and (type(x) is not type(y) or x != y):
            raise InputError(
                f"at `{jtu.keystr(path)}`, the tree is {x!r} if a step is applied, and "
                f"{y!r} if not. A value that changes between steps must be an array from "
                "`init` on, such as `jnp.zeros((), jnp.int32)`."
            )


def cond(
    pred: Any, true_fn: Callable[[], _Carry], false_fn: Callable[[], _Carry]
) -> _Carry:
    """`lax.cond` without arguments, where `false_fn` returns arrays unchanged.

    XLA copies some of these arrays, as large as the state, unless `false_fn` is the
    first branch on a GPU, and the last one on a CPU. So it is both. (Before JAX 0.11,
    that would be copied on a CPU, too.)
    """
    branches = [true_fn, false_fn]
    if is_in_shard_map():
        branches = _varying_alike(branches)
    if release < (0, 11):
        return lax.cond(pred, *branches)
    first, last = jnp.int32(0), jnp.int32(2)
    idle = lax.platform_dependent(cpu=lambda: last, default=lambda: first)
    return lax.switch(jnp.where(pred, 1, idle), [branches[1], *branches])


def _check_is_on_device(tree):
    if any(map(is_elsewhere, jtu.tree_leaves(tree, is_leaf=is_elsewhere))):
        raise InputError(
            "XLA has no branches for arrays in the memory of the host. Put `Offload` "
            "outside: `eqopt.Offload(eqopt.SkipStep(opt, rule))`."
        )


def _varying_alike(fns):
    """Branches, which may differ in what varies between devices, without that."""
    types, *others = [jax.eval_shape(fn) for fn in fns]
    axes = jax.tree.map(varying_axes, types, *others)
    return [lambda fn=fn: jax.tree.map(vary, fn(), axes) for fn in fns]


def rounds_alike(
    body: Callable[[_Carry], _Carry], start: _Carry
) -> Callable[[_Carry], _Carry]:
    """Makes the carry of a loop vary between devices as it does after all rounds."""
    if not is_in_shard_map():
        return lambda carry: carry
    first, treedef = jtu.tree_flatten(start)
    axes = [varying_axes(jax.typeof(x)) for x in first]

    def varied(tree):
        return treedef.unflatten(map(vary, jtu.tree_leaves(tree), axes))

    while True:  # ends, because axes are only added
        types = jtu.tree_leaves(jax.eval_shape(lambda x: body(varied(x)), start))
        after = [old | varying_axes(x) for old, x in zip(axes, types, strict=True)]
        if after == axes:
            return varied
        axes = after


def vary(x: Any, axes: frozenset) -> Any:
    """`x` as an array that varies along `axes`, too."""
    more = tuple(sorted(axes - varying_axes(jax.typeof(x))))
    return lax.pcast(x, more, to="varying") if more else x
