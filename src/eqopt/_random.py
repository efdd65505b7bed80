"""Random keys in states, which can be saved, loaded and donated."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PyTree, UInt32

from ._leaves import map_parameters, parameters
from ._types import Key


def as_key(key: Key) -> Any:
    """`key`, or the typed key of a seed."""
    return jr.key(key) if _is_seed(key) else key


def _is_seed(key: Key) -> bool:
    return isinstance(key, int) or (
        jnp.ndim(key) == 0 and jnp.issubdtype(key.dtype, jnp.integer)
    )


def key_data(key: Key) -> UInt32[Array, "*key"]:
    """What a state holds of `key`: its bits, in a buffer of its own.

    Typed keys do not go into `eqx.tree_serialise_leaves`.
    """
    key = as_key(key)
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jnp.array(jr.key_data(key) if is_typed else key, copy=True)


def next_key(
    data: UInt32[Array, "*key"], key: Key
) -> tuple[Any, UInt32[Array, "*key"]]:
    """A key to use now, and the bits for the state; `key` says of which kind."""
    is_typed = not _is_seed(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    wrapped = jr.wrap_key_data(data, impl=jr.key_impl(key) if is_typed else None)
    now, later = jr.split(wrapped)
    return now, jr.key_data(later)


def split_like(key: Any, tree: PyTree) -> PyTree:
    """A key in the place of each inexact array in `tree`."""
    keys = iter(jr.split(key, max(1, len(jax.tree.leaves(parameters(tree))))))
    return map_parameters(lambda _: next(keys), tree)
