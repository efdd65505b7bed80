"""Matrices in stacks that are divided between devices, together with their state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import PartitionSpec as P

from .._errors import InputError
from .._trees.leaves import is_leaf
from .._trees.sharding import sharded_like
from .._trees.stacked import Divided, Stacks, is_stacks
from .._types import PyTree, State
from ..numerics._numerics import wide_dtype
from .axes import Axes
from .dimension_numbers import MatrixDimensionNumbers
from .division import Division


class _Stack(NamedTuple):
    """Equal leaves that are joined, or a leaf that is a stack already.

    - `leaves`: their positions.
    - `divided`: the axis of the leaf that is divided; `None` if leaves are joined.
    - `division`: how devices divide the stack.
    - `size`: the number of matrices, or of smaller stacks, without padding.
    - `shape`: the shape without the first axis.
    - `dtype`: at least float32.
    - `numbers`: which axes of the stack are matrices.
    """

    leaves: tuple[int, ...]
    divided: Divided | None
    division: Division
    size: int
    shape: tuple[int, ...]
    dtype: Any
    numbers: MatrixDimensionNumbers

    @property
    def axis(self) -> int:
        return 0 if self.divided is None else self.divided.axis

    def join(self, leaves: Sequence[Any]) -> Any:
        """One array, whose first axis is divided between the devices."""
        own = [leaves[i] for i in self.leaves]
        x = own[0] if self.divided else jnp.stack(own)
        # Each method is finite for zeros, and nothing is sent for them.
        return self.division.divide(x, self.axis, mode="constant")

    def split(self, x: Any) -> Sequence[Any]:
        """The inverse of `join`: one array for each of `leaves`."""
        x = self.division.restore(x, self.axis, self.size)
        return [x] if self.divided else jnp.unstack(x)


def _find_stacks(self, tree, params, division: Division) -> list[_Stack]:
    """The matrices in `tree`: equal leaves are one stack, a stack is one by itself."""
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    groups: dict[Any, list[int]] = {}
    pairs = zip(self._axes(tree, params), leaves, strict=True)
    for i, (axes, x) in enumerate(pairs):
        if axes is not None:
            key = tuple(x.shape), wide_dtype(x.dtype), axes
            groups.setdefault((*key, i if axes.stack else None), []).append(i)
    return [
        _make_stack(axes, shape, dtype, tuple(leaves), division)
        for (shape, dtype, axes, _), leaves in groups.items()
    ]


def _make_stack(axes: Axes, shape, dtype, leaves, division: Division) -> _Stack:
    divided, count = None, len(leaves)
    if axes.stack:
        number = division.best([shape[i] for i in axes.stack])
        axis = axes.stack[number]
        count, shape = shape[axis], shape[:axis] + shape[axis + 1 :]
        equal = [i for i, sizes in axes.blocks if len({*sizes}) == 1]
        divided = Divided(count, axis, number + sum(i < axis for i in equal))
    division = division._replace(is_of_leaves=divided is None)
    moved = lambda i: i + 1 if divided is None or i < divided.axis else i
    sides = [tuple(map(moved, side)) for side in (axes.reduction, axes.output)]
    blocks = {moved(i): sizes for i, sizes in axes.blocks}
    numbers = MatrixDimensionNumbers(
        *sides, *(blocks.get(side[0], 1) if side else 1 for side in sides)
    )
    return _Stack(leaves, divided, division, count, shape, dtype, numbers)


def init_stacks(self, params, division: Division, make: Callable[[Any, Any], PyTree]):
    """`make(own, zeros)`, for stacks of zeros: `own` is `self` with their axes."""
    stacks = _find_stacks(self, params, params, division)
    own = _with_axes_of(self, stacks)

    def of_share():
        share = lambda x: (division.pad(x.size) // division.size, *x.shape)
        return make(own, [jnp.zeros(share(x), x.dtype) for x in stacks])

    run = division.on_shares(of_share, (), division.spec)
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    leaves, axes = [x.leaves for x in stacks], [x.divided for x in stacks]
    return Stacks(run(), tuple(leaves), tuple(axes), treedef)


def update_stacks(self, updates, state, params, division, update):
    """`update(own, updates, state)`, for stacks of updates: `own` is as in `init_stacks`.

    It gets no parameters and no extra arguments: no equation with such a state reads
    them, and devices would exchange them in each step. Here, `params` only says which
    leaves are matrices.
    """
    stacks = _find_stacks(self, updates, params, division)
    _check_fits(state, stacks, division)
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    given = [x.join(leaves) for x in stacks]
    slots = jax.tree.map(
        lambda x: x.arrays if is_stacks(x) else x, state, is_leaf=is_stacks
    )
    own = _with_axes_of(self, stacks)
    arrays, others = eqx.partition((own, slots), eqx.is_array)
    specs = jax.tree.map(lambda x: division.spec if x.ndim else P(), arrays)

    def of_share(given, arrays):
        own, slots = eqx.combine(arrays, others)
        return update(own, given, slots)

    in_specs, out_specs = (division.spec, specs), (division.spec, specs[1])
    new, slots = division.on_shares(of_share, in_specs, out_specs)(given, arrays)
    for stack, x in zip(stacks, new, strict=True):
        for i, part in zip(stack.leaves, stack.split(x), strict=True):
            leaves[i] = sharded_like(leaves[i], part)
    state = jax.tree.map(
        lambda old, x: dataclasses.replace(old, arrays=x) if is_stacks(old) else x,
        state,
        slots,
        is_leaf=is_stacks,
    )
    return treedef.unflatten(leaves), state


def _with_axes_of(self: Any, stacks: list[_Stack]) -> Any:
    numbers = [x.numbers for x in stacks]
    return dataclasses.replace(self, weight_dimension_numbers=numbers)


def _slots(state: State) -> list[Stacks]:
    slots = jax.tree.leaves(state, is_leaf=is_stacks)
    return [x for x in slots if is_stacks(x)]


def check_stacks(state: State, division: Division | None) -> None:
    """Raises an error if only one of state and step has stacks."""
    if bool(_slots(state)) == (division is None):
        made = "with" if division is None else "without"
        raise InputError(
            f"`state` was made {made} `eqopt.DistributeMatrices`. Make it with the same "
            "wrapper, or call `eqopt.tree.migrate`."
        )


def _check_fits(state: State, stacks: Sequence[_Stack], division: Division) -> None:
    expected = tuple(x.leaves for x in stacks)
    for slot in _slots(state):
        if slot.leaves != expected:
            raise InputError(
                f"`updates` has stacks of the leaves {expected}, but `state` has "
                f"{slot.leaves}. In `eqopt.DistributeMatrices`, each matrix needs an "
                "update."
            )
        for stack, own in zip(stacks, slot.arrays, strict=True):
            for x in jax.tree.leaves(own):
                if len(x) != (padded := division.pad(stack.size)):
                    raise InputError(
                        f"`state` has a stack of {len(x)} matrices, but on "
                        f"{division.size} devices it has {padded}. Call "
                        "`eqopt.tree.migrate`."
                    )
