"""Random keys in states, which can be saved, loaded and donated."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from .._jax_internals import varying_axes
from .._types import Key, PyTree, State
from .leaves import is_leaf, parameters
from .sharding import is_in_shard_map


# The generator for keys with so many words. Any of them can derive new keys.
_KINDS = {(2,): "threefry2x32", (4,): "rbg"}


def as_key(key: Key) -> Any:
    """`key`, or the typed key of a seed."""
    return jr.key(key) if _is_seed(key) else key


def _is_seed(key: Any) -> bool:
    return isinstance(key, int) or (
        jnp.ndim(key) == 0 and jnp.issubdtype(key.dtype, jnp.integer)
    )


def _is_typed(key: Any) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def key_data(key: Key) -> UInt32[Array, "*key"]:
    """The form of `key` in a state: its bits, in a separate buffer.

    `eqx.tree_serialise_leaves` cannot save typed keys.
    """
    made = as_key(key)
    return jnp.array(jr.key_data(made) if _is_typed(made) else made, copy=True)


def next_key(
    data: UInt32[Array, "*key"], key: Key
) -> tuple[Any, UInt32[Array, "*key"]]:
    """A key to use now, and the bits for the state; `key` determines its kind."""
    made = as_key(key)
    impl = jr.key_impl(made) if _is_typed(made) else None
    now, later = jr.split(jr.wrap_key_data(data, impl=impl))
    return now, jr.key_data(later)


def split_like(key: Any, tree: PyTree) -> PyTree:
    """A key instead of each inexact array in `tree`.

    `None` counts as a position, so that two parts of one tree get different keys. So do
    the shards of an array inside `jax.shard_map`, along the axes where JAX knows that it
    varies.
    """
    leaves, treedef = jtu.tree_flatten(parameters(tree), is_leaf=is_leaf)
    keys = jr.split(key, max(1, len(leaves)))
    pairs = zip(keys, leaves, strict=False)
    return treedef.unflatten(None if x is None else _of_shard(k, x) for k, x in pairs)


def _of_shard(key: Any, x: Any) -> Any:
    if not is_in_shard_map():
        return key
    arrays = jtu.tree_leaves(x)  # several if it is stored
    type_of = lambda a: a if isinstance(a, jax.ShapeDtypeStruct) else jax.typeof(a)
    axes = tuple(sorted(varying_axes(*map(type_of, arrays))))
    return jr.fold_in(key, lax.axis_index(axes)) if axes else key


def keep_keys(state: State, old: State) -> State:
    """`state` with the random keys of `old`, which a restart must not reuse.

    These are the typed keys and the arrays of dtype uint32, the form of JAX's key bits.
    """
    return jtu.tree_map(lambda new, x: x if _is_key(x) else new, state, old)


def keys_of_part(state: State, tree: PyTree) -> State:
    """`state` with different random keys for each part of one tree.

    For an inner transformation that does not know which part it gets: with the same
    seed, it would generate the same noise for all parts.
    """
    leaves = jtu.tree_leaves(parameters(tree), is_leaf=is_leaf)
    place = next((i for i, x in enumerate(leaves) if x is not None), 0)
    # Counted from the end: for small numbers, `fold_in` gives the same keys as `split`.
    fold = lambda x: _folded(x, 2**32 - place) if _is_key(x) else x
    return jtu.tree_map(fold, state) if place else state


def _folded(key: Any, data: int) -> Any:
    if _is_typed(key):
        return jr.fold_in(key, np.uint32(data))
    if key.shape not in _KINDS:
        return key
    typed = jr.wrap_key_data(key, impl=_KINDS[key.shape])
    return jr.key_data(jr.fold_in(typed, np.uint32(data)))


def _is_key(x: Any) -> bool:
    kinds = jax.dtypes.prng_key, jnp.uint32
    return eqx.is_array(x) and any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
