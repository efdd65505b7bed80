"""Meshes with explicit axes, on which JAX asks where each result is to be.

Elementwise work answers that by itself. What reshapes, or contracts an axis that is
sharded, leaves the answer to XLA, as on automatic axes. (That takes a JAX that has
`jax.sharding.auto_axes` and `reshard`; before, explicit axes were an experiment.)
"""

from collections.abc import Callable
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import PyTree

from ._leaves import is_parameter


def on_automatic_axes(fn: Callable, *arguments: Any, shardings: PyTree) -> Any:
    """`fn(*arguments)`, within which no axis of the mesh is explicit.

    All arrays that `fn` works with are in its arguments, which may be any trees.
    `shardings` are those of the arrays that it returns, in a tree of their structure.
    """
    axes = jax.sharding.get_abstract_mesh().explicit_axes
    if not axes:
        return fn(*arguments)
    arrays, others = eqx.partition(arguments, eqx.is_array)
    rest = []

    def of_arrays(arrays):
        result, other = eqx.partition(fn(*eqx.combine(arrays, others)), eqx.is_array)
        rest.append(other)
        return result

    automatic = jax.sharding.auto_axes(of_arrays, axes=axes, out_sharding=shardings)
    return eqx.combine(automatic(arrays), rest[0])


def shardings_of(tree: PyTree) -> PyTree:
    """Those of the arrays in `tree`, as their types say: `None` in place of all else."""
    mesh = jax.sharding.get_abstract_mesh()

    def of(x):
        # What has not met the mesh yet, such as a new count, has an empty one.
        sharding = jax.typeof(x).sharding
        return NamedSharding(mesh, P()) if sharding.mesh.empty else sharding

    is_array = lambda x: eqx.is_array(x) or is_parameter(x)  # NumPy's, too
    return jtu.tree_map(of, eqx.filter(tree, is_array))


@no_type_check  # called once per leaf, like the next one
def unsharded(x):
    """`x` on every device in full, if it is sharded over an explicit axis."""
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, P()))


@no_type_check
def sharded_like(x, y):
    """`y` in the explicit shards of `x`, if it has any."""
    sharding = jax.typeof(x).sharding
    return jax.sharding.reshard(y, sharding) if sharding.mesh.explicit_axes else y
