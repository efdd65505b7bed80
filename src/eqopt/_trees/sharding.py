"""Meshes: results that are sharded like an array, and meshes with explicit axes.

On explicit axes, JAX requires a sharding for some results. Elementwise operations
determine the sharding themselves. Operations that reshape, or contract a sharded axis,
leave it to XLA, as on automatic axes.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

from .._jax_internals import is_traced
from .._types import PyTree


def on_automatic_axes(fn: Callable, *arguments: Any, shardings: PyTree) -> Any:
    """`fn(*arguments)`, where no axis of the mesh is explicit inside `fn`.

    All arrays that `fn` uses must be in its arguments, which may be any trees.
    `shardings`: the shardings of the arrays that it returns, in a tree with the same
    structure.
    """
    mesh = _mesh_of(arguments)
    if not mesh.explicit_axes:
        return fn(*arguments)
    arrays, others = eqx.partition(arguments, eqx.is_array)
    rest = []

    def of_arrays(arrays):
        result, other = eqx.partition(fn(*eqx.combine(arrays, others)), eqx.is_array)
        rest.append(other)
        return result

    automatic = jax.sharding.auto_axes(
        of_arrays, axes=mesh.explicit_axes, out_sharding=shardings
    )
    with _in_use(mesh, arrays):
        return eqx.combine(automatic(arrays), rest[0])


def has_explicit_axes(tree: PyTree) -> bool:
    """Whether the mesh of the arrays in `tree` has explicit axes."""
    return bool(_mesh_of(tree).explicit_axes)


def _mesh_of(tree: PyTree) -> Any:
    """The current mesh; if there is none, the mesh in the types of the arrays."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    found = (jax.typeof(x).sharding.mesh for x in jtu.tree_leaves(tree) if _is_array(x))
    return next((m for m in found if m.explicit_axes), mesh) if mesh.empty else mesh


def _in_use(mesh: Any, arrays: PyTree) -> Any:
    """A context in which `mesh` is set, even without a call of `jax.set_mesh`."""
    if not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    shardings = [x.sharding for x in jtu.tree_leaves(arrays) if not is_traced(x)]
    named = (s.mesh for s in shardings if isinstance(s, NamedSharding))
    # Outside `jit`, JAX must know the devices.
    devices = next((m for m in named if m.abstract_mesh == mesh), None)
    if devices is None:
        return jax.sharding.use_abstract_mesh(mesh)
    return jax.set_mesh(devices)  # type: ignore  # it is one of devices


def shardings_of(tree: PyTree) -> PyTree:
    """The shardings of the arrays in `tree`, from their types: `None` elsewhere."""
    mesh: Any = _mesh_of(tree)

    def of(x):
        # An array that is not on the mesh yet, such as a new count, has an empty mesh.
        sharding = jax.typeof(x).sharding
        return NamedSharding(mesh, P()) if sharding.mesh.empty else sharding

    return jtu.tree_map(of, eqx.filter(tree, _is_array))


def _is_array(x):
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def on_all_devices(state: PyTree, params: PyTree) -> PyTree:
    """`state`, where arrays that are on one device are on each device of `params`.

    The first step would put them there, and the second one would be another program.
    """
    arrays = [x for x in jtu.tree_leaves(params) if isinstance(x, jax.Array)]
    leaves, treedef = jtu.tree_flatten(state)
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]
    if not arrays or not places or is_in_shard_map():
        return state
    if any(map(is_traced, [arrays[0], *leaves])):
        # JAX places what a program returns where the arguments are that it uses, and
        # slots like a parameter are made from it, except for Optax's on explicit axes.
        slots = {leaves[i].shape for i in places if _may_be_slot(leaves[i])}
        if slots & {x.shape for x in arrays} and not has_explicit_axes(params):
            return state
        first = places[0]
        leaves[first], _ = lax.optimization_barrier((leaves[first], arrays[0]))
        return treedef.unflatten(leaves)
    placed = [x.sharding for x in arrays if isinstance(x.sharding, NamedSharding)]
    sharding = max(placed, key=lambda s: len(s.device_set), default=None)
    # For the devices of many hosts, compile `init`.
    if sharding is None or not sharding.is_fully_addressable:
        return state
    everywhere = NamedSharding(sharding.mesh, P())
    for i in places:
        if len(leaves[i].sharding.device_set) == 1:
            leaves[i] = jax.device_put(leaves[i], everywhere)
    return treedef.unflatten(leaves)


def _may_be_slot(x: Any) -> bool:
    """Whether `x` may be a slot: wide integers are counts and the words of keys."""
    is_wide = jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize > 2
    return x.ndim > 0 and not is_wide


def is_in_shard_map() -> bool:
    mesh: Any = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes)


def unsharded(x):
    """`x` on every device in full, if it is sharded over an explicit axis."""
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, P()))


def in_full(x, *first):
    """`x` on every device in full, if it is traced on a mesh with automatic axes.

    `first`: specs of the first axes, which may be divided.
    """
    mesh: Any = jax.typeof(x).sharding.mesh
    if not is_traced(x) or mesh.empty or mesh.explicit_axes or mesh.manual_axes:
        return x
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*first)))


def in_explicit_shards(x, y):
    """`y` in the explicit shards of `x`, if it has any."""
    sharding = jax.typeof(x).sharding
    return jax.sharding.reshard(y, sharding) if sharding.mesh.explicit_axes else y


def sharded_like(x, y):
    """`y` in the shards of `x`, an array of the same shape, on any mesh."""
    if not is_traced(x):
        sharding = getattr(x, "sharding", None)  # an array of NumPy has none
        is_whole = sharding is None or sharding.is_fully_replicated
        return y if is_whole else jax.device_put(y, sharding)
    y = in_explicit_shards(x, y)
    # On automatic axes, only XLA knows the shards of `x`, and it divides alike what is
    # computed together. On explicit ones, a program that uses no argument does not know
    # its devices. No number is less than minus infinity, but XLA does not use this.
    return jnp.where(x.real < -jnp.inf, 7, y).astype(y.dtype)


def moved_like(x, y):
    """`y`, which may be in other shards, in the shards of `x`, inside `jit`.

    Both have the same shape and dtype, also of integers. The result is in the memory of
    `x`, perhaps the host's.
    """
    type_: Any = jax.typeof(x)
    mesh, memory = type_.sharding.mesh, type_.memory_space
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    if mesh.empty or mesh.manual_axes or is_key or not x.ndim:
        return y
    x, y = on_device(x), on_device(y)
    if mesh.explicit_axes:
        return _in_memory(in_explicit_shards(x, y), memory)
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    number = x.real if is_inexact else x.astype(jnp.float32)
    # As in `sharded_like`. If the shards of `x` and `y` contradict each other, XLA leaves
    # the first result whole, and divides the second one like `x`, but only if `x` is one
    # of the values to select.
    for _ in range(2):
        y = jnp.where(number < -jnp.inf, x, y)
    return _in_memory(y, memory)


def on_device(x):
    """`x` in the memory of the device, not of the host."""
    return _in_memory(x, jax.memory.Space.Device)


def _in_memory(x, memory):
    type_: Any = jax.typeof(x)
    return x if type_.memory_space == memory else jax.device_put(x, memory)
