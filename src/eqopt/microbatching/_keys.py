"""One random key for a whole batch: the keys for each row and microbatch."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from ._rows import Batch


def is_single_key(x: Any) -> bool:
    """Whether `x` is one key, typed or raw, rather than an array of several."""
    if not isinstance(x, jax.Array):
        return False
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.ndim == 0
    raw = jax.eval_shape(jr.PRNGKey, 0)
    return (x.shape, x.dtype) == (raw.shape, raw.dtype)


def split_key(key: Array, batch: Batch) -> Array:
    """One key for each row of `batch`, along axis 0."""
    keys = jr.split(key, batch.split.rows)
    pairs = zip(batch.leaves, batch.axes, strict=True)
    x, axis = next((x, a) for x, a in pairs if a is not None)
    # Explicitly sharded axes can be mapped over together if they are sharded in the
    # same way. On an automatic mesh, the type of an array has no sharding: XLA chooses.
    sharding = jax.typeof(x).sharding
    if sharding.spec[axis] is None:
        return keys
    spec = PartitionSpec(sharding.spec[axis], *([None] * (keys.ndim - 1)))
    return jax.sharding.reshard(keys, NamedSharding(sharding.mesh, spec))
