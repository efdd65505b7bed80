"""Part of a state as stacks of matrices, each divided between devices."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import PartitionSpec as P

from .._types import PyTree, State
from .sharding import in_full, sharded_like, unsharded


class Divided(NamedTuple):
    """The axis of a leaf that is divided, if the leaf is a stack already.

    - `size`: how many matrices, or smaller stacks, are along it, without padding.
    - `axis`: its number among the axes of the leaf.
    - `number`: its number in an array for each matrix, whose first axes are the axes
        of the stack and one for each axis with equal blocks, in the order of the leaf.
    """

    size: int
    axis: int
    number: int


class Stacks(eqx.Module):
    """A part of the state, for matrices in stacks.

    **Attributes:**

    - `arrays`: the state of each stack, whose first axis is divided between devices.
        Padding may follow.
    - `leaves`: the positions of the leaves in each stack, static.
    - `divided`: for each stack, `None` if its leaves were joined, static.
    - `treedef`: the structure of the parameters, static.
    """

    arrays: PyTree
    leaves: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    divided: tuple[Divided | None, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)

    def by_leaf(self) -> PyTree:
        """What the state has without stacks: arrays for each leaf, `None` elsewhere."""
        is_abstract = lambda x: isinstance(x, jax.ShapeDtypeStruct)
        if any(map(is_abstract, jax.tree.leaves(self.arrays))):
            shape_of = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # on no mesh
            return jax.eval_shape(self._by_leaf, jax.tree.map(shape_of, self.arrays))
        return self._by_leaf(jax.tree.map(unsharded, self.arrays))

    def _by_leaf(self, arrays: PyTree) -> PyTree:
        found: list[Any] = [None] * self.treedef.num_leaves
        for own, leaves, divided in self._each(arrays):
            for k, i in enumerate(leaves):
                found[i] = jax.tree.map(_matrix_of(k, divided, own), own)
        return self.treedef.unflatten(found)

    def of_leaves(self, tree: PyTree) -> "Stacks":
        """The inverse, with the padding, the types and the places of these arrays."""
        found = self.treedef.flatten_up_to(tree)
        arrays = []
        for own, leaves, divided in self._each(self.arrays):
            join = _join_like(divided, own)
            arrays.append(jax.tree.map(join, own, *(found[i] for i in leaves)))
        return Stacks(arrays, self.leaves, self.divided, self.treedef)

    def divided_paths(self) -> list[tuple]:
        """The key paths, in what `by_leaf` returns, of leaves that are stacks already."""
        numbers = self.treedef.unflatten(range(self.treedef.num_leaves))
        paths = [path for path, _ in jtu.tree_leaves_with_path(numbers)]
        pairs = zip(self.leaves, self.divided, strict=True)
        return [paths[leaves[0]] for leaves, divided in pairs if divided]

    def _each(self, arrays: PyTree) -> Any:
        return zip(arrays, self.leaves, self.divided, strict=True)


def _matrix_of(k, divided, own):
    if divided is None:
        return lambda x: x[k]
    return lambda x: jnp.moveaxis(x[: divided.size], 0, _axis(divided, own))


def _join_like(divided, own):
    def join(x, *leaves):
        leaves = [*map(unsharded, leaves)]
        if divided is None:
            new = jnp.stack(leaves)
        else:
            new = jnp.moveaxis(leaves[0], _axis(divided, own), 0)
        new = in_full(new, P.UNCONSTRAINED)  # each matrix will be on one device
        padding = unsharded(x)[len(new) :]
        return sharded_like(x, jnp.concatenate([new, padding]))

    return join


def _axis(divided: Divided, own: Any) -> int:
    """An array has the axes of the leaf; those in a tuple begin with a stack's axes."""
    return divided.number if isinstance(own, tuple) else divided.axis


def is_stacks(x: Any) -> bool:
    return isinstance(x, Stacks)


def without_stacks(state: State) -> State:
    """`state` as it is without `eqopt.DistributeMatrices`."""
    own = lambda x: x.by_leaf() if is_stacks(x) else x
    return jtu.tree_map(own, state, is_leaf=is_stacks)


def with_stacks(like: State, state: State) -> State:
    """`state`, which has no stacks, with the stacks of `like`."""
    own = lambda x, y: x.of_leaves(y) if is_stacks(x) else y
    return jtu.tree_map(own, like, state, is_leaf=is_stacks)
