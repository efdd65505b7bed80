"""Random trees, and random keys in trees."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import DTypeLike

from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.keys import as_key, split_like
from .._trees.leaves import is_leaf, is_parameter
from .._trees.sharding import sharded_like
from .._types import Key, PyTree
from ._like import _dtype_for
from ._together import loaded


def split_key_like(rng_key: Key, target_tree: PyTree) -> PyTree:
    """A random key instead of every inexact array, and `None` for everything else.

    **Arguments:**

    - `rng_key`: a seed, a typed key of `jax.random.key`, or the bits of
        `jax.random.PRNGKey`.
    - `target_tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.

    **Returns:**

    A tree with the same structure. `jax.random.split` makes one key for each leaf in
    order, also for `None` and other leaves without a key. So the keys do not depend on
    shapes and dtypes. They are typed keys if `rng_key` is a typed key or a seed, and
    bits otherwise. Inside `jax.shard_map`, each shard of an array gets its own key, but
    not with `check_vma=False`.
    """
    return split_like(as_key(rng_key), target_tree)


def random_like(
    rng_key: Key,
    target_tree: PyTree,
    sampler: Callable[..., Any] = jr.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Random numbers instead of every inexact array, and `None` for everything else.

    !!! example

        ```python
        noise = eqopt.tree.random_like(key, model)
        signs = eqopt.tree.random_like(key, model, jax.random.rademacher)
        ```

    **Arguments:**

    - `rng_key`: a seed, a typed key of `jax.random.key`, or the bits of
        `jax.random.PRNGKey`. Each array gets its own key, from
        [`eqopt.tree.split_key_like`][].
    - `target_tree`: any pytree, such as a whole model; its arrays may be
        `jax.ShapeDtypeStruct`s.
    - `sampler`: a function of a key, a shape and a dtype. Defaults to
        `jax.random.normal`.
    - `dtype`: the dtype of the numbers. Defaults to the dtype of each array. For a
        complex array, a floating dtype means the complex dtype with the same precision.

    **Returns:**

    A tree with the same structure, sharded like `target_tree`. The numbers for an array
    do not depend on the shapes of other arrays.
    """
    keys = split_like(as_key(rng_key), target_tree)
    leaves, treedef = jtu.tree_flatten(target_tree, is_leaf=is_leaf)

    def sampled(x: Any, key: Any) -> Any:
        if not is_parameter(x):
            return None
        sample = sampler(key, x.shape, _dtype_for(x, dtype))
        if jnp.shape(sample) != tuple(x.shape):
            raise InputError(
                "random_like",
                f"`sampler` returned shape {jnp.shape(sample)} for shape {x.shape}.",
            )
        return _sharded_like(loaded(x), sample)

    return treedef.unflatten(map(sampled, leaves, treedef.flatten_up_to(keys)))


def _sharded_like(x: Any, sample: Any) -> Any:
    if not isinstance(x, jax.Array) or (is_traced(sample) and not is_traced(x)):
        return sample  # `x` is on no device, or on the devices of another program
    return sharded_like(x, sample)


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """`input_tree` with the bits of its typed random keys instead of the keys.

    Typed keys cannot be compared as numbers, and `eqx.tree_serialise_leaves` cannot
    save them. Arrays of bits have neither restriction.

    **Arguments:**

    - `input_tree`: any pytree.

    **Returns:**

    `input_tree` with `jax.random.key_data(x)`, a uint32 array, instead of each array
    `x` of typed keys, which `jax.random.key` returns. Everything else stays unchanged,
    including integer arrays.
    """
    return jtu.tree_map(lambda x: jr.key_data(x) if is_typed_key(x) else x, input_tree)


def is_typed_key(x: Any) -> bool:
    """Whether a leaf is an array of the keys that `jax.random.key` returns."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
