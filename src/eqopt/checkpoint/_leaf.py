"""The bytes of one array or number of a checkpoint."""

from collections.abc import Collection
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from ._layout import CheckpointError, is_key, is_number, is_saved, is_weak


def write_leaf(file: Any, x: Any) -> None:
    if not is_saved(x):
        return
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray:
        raise TypeError(
            f"Of a {type(x).__module__}.{type(x).__qualname__}, only the values would be "
            "saved. Save `np.asarray(x)`, and the mask of a masked array separately."
        )
    x = np.asarray(jr.key_data(x) if is_key(x) else x)
    np.save(file, x.view(_stored(x.dtype)), allow_pickle=False)


def _stored(dtype: np.dtype) -> np.dtype:
    """The dtype of an array in the file: NumPy's format does not support bfloat16."""
    was_registered = dtype.isbuiltin == 2
    return np.dtype(f"V{dtype.itemsize}") if was_registered else dtype


def read_leaf(
    file: BinaryIO, like: Any, path: str, weak: Collection[str] | None
) -> Any:
    """The next leaf of the file, which is at `path` in the tree, in the form of `like`.

    `weak` has the paths of weak types, and is `None` if the file is too old to have them.
    """
    if not is_saved(like):
        return like
    x = np.load(file, allow_pickle=False)
    if is_number(like):
        return type(like)(x.item())
    place = _place(like)
    if is_key(like):
        impl = jr.key_impl(jnp.empty((), like.dtype))
        keys = jr.wrap_key_data(jnp.asarray(x), impl=impl)
        return keys if place is None else jax.device_put(keys, place)
    x = x.view(like.dtype)
    if isinstance(like, np.ndarray | np.generic):
        return x if isinstance(like, np.ndarray) else x[()]
    has_weak_type = is_weak(like) if weak is None else path in weak
    made = _as_jax(x, place, has_weak_type)
    if made.dtype != like.dtype:
        is_wide: bool = jax.config.jax_enable_x64  # type: ignore  # added at run time
        raise CheckpointError(
            f"`{path or '(the root)'}` has dtype {like.dtype}, which JAX cannot create "
            f"with jax_enable_x64={is_wide}. Set it to its value in the saved run."
        )
    return made


def _as_jax(x: np.ndarray, place: Any, has_weak_type: bool) -> jax.Array:
    """An array of NumPy as one of JAX, which shares no memory with it."""
    if has_weak_type:
        # Values written into a weak array take its type, and numbers make weak arrays.
        weak = jnp.full(x.shape, x.dtype.type(0).item()).at[...].set(x)
        return weak if place is None else jax.device_put(weak, place)
    # Placed from the host: as a whole, it may be too large for one device.
    return jnp.array(x) if place is None else jax.device_put(x, place, may_alias=False)


def _place(like: Any) -> Any:
    """The sharding of `like`, if it has specific devices."""
    if isinstance(like, np.ndarray | np.generic):
        return None
    is_struct = isinstance(like, jax.ShapeDtypeStruct)
    sharding = like.sharding if is_struct or like.committed else None
    if not isinstance(sharding, NamedSharding):
        return sharding
    if not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    # `eval_shape` on a mesh with explicit axes keeps the axes, but not the devices.
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, sharding.spec)
