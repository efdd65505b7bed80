"""Matrices in stacks that are divided between devices, together with their state."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from .._trees.axes import Axes, resolve_dimension_numbers
from .._trees.dimension_numbers import MatrixDimensionNumbers
from .._trees.leaves import is_leaf
from .._trees.sharding import sharded_like
from .._trees.stacked import Divided, Stacks, is_stacks
from .._types import Params, State, Updates
from ..numerics import wide_dtype
from .division import Division


class _Stack(NamedTuple):
    """Equal leaves that are joined, or a leaf that is a stack already.

    - `leaves`: their positions.
    - `divided`: the axis of the leaf that is divided; `None` if leaves are joined.
    - `size`: the number of matrices, or of smaller stacks, with padding: a multiple of
        the number of devices.
    - `shape`: the shape without the first axis.
    - `dtype`: at least float32.
    - `numbers`: which axes of the stack are matrices.
    """

    leaves: tuple[int, ...]
    divided: Divided | None
    size: int
    shape: tuple[int, ...]
    dtype: Any
    numbers: MatrixDimensionNumbers

    @property
    def given(self) -> int:
        """The number without padding."""
        return len(self.leaves) if self.divided is None else self.divided.size

    def joined(self, leaves: Sequence[Any], division: Division) -> Any:
        own = [leaves[i] for i in self.leaves]
        if self.divided is None:
            x = _together(jnp.stack(own), division)
        else:
            x = jnp.moveaxis(own[0], self.divided.axis, 0)
        # Updates that are zero are finite in each method.
        padding = [(0, self.size - self.given)] + [(0, 0)] * len(self.shape)
        return jnp.pad(x, padding) if self.size > self.given else x

    def parts(self, x: Any, division: Division) -> dict[int, Any]:
        """The leaves in the stack, by their positions."""
        x = lax.slice_in_dim(x, 0, self.given)
        if self.divided is not None:
            return {self.leaves[0]: jnp.moveaxis(x, 0, self.divided.axis)}
        x = _together(x, division)
        return {i: lax.index_in_dim(x, k, 0, False) for k, i in enumerate(self.leaves)}


def _together(x: Any, division: Division) -> Any:
    return division._replace(is_of_leaves=True).together(x)


def _stacks(
    self: Any, tree: PyTree, params: Params | None, division: Division
) -> list[_Stack]:
    """The matrices in `tree`: equal leaves are one stack, a stack is one by itself."""
    found = resolve_dimension_numbers(
        self.weight_dimension_numbers, tree, params, is_required=True
    )
    groups: dict[Any, list[int]] = {}
    for i, (axes, x) in enumerate(
        zip(found, jtu.tree_leaves(tree, is_leaf=is_leaf), strict=True)
    ):
        if axes is not None and 0 not in x.shape:
            key = tuple(x.shape), wide_dtype(x.dtype), axes
            groups.setdefault((*key, i if axes.stack else None), []).append(i)
    return [
        _stack(axes, shape, dtype, tuple(leaves), division)
        for (shape, dtype, axes, _), leaves in groups.items()
    ]


def _stack(axes: Axes, shape, dtype, leaves, division: Division) -> _Stack:
    divided, count = None, len(leaves)
    if axes.stack:
        number = division.best([shape[i] for i in axes.stack])
        axis = axes.stack[number]
        count, shape = shape[axis], shape[:axis] + shape[axis + 1 :]
        equal = [i for i, sizes in axes.blocks if len({*sizes}) == 1]
        divided = Divided(count, axis, number + sum(i < axis for i in equal))
    moved = lambda i: i + 1 if divided is None or i < divided.axis else i
    sides = [tuple(map(moved, side)) for side in (axes.reduction, axes.output)]
    blocks = {moved(i): sizes for i, sizes in axes.blocks}
    numbers = MatrixDimensionNumbers(
        *sides, *(blocks.get(side[0], 1) if side else 1 for side in sides)
    )
    size = math.ceil(count / division.size) * division.size
    return _Stack(leaves, divided, size, shape, dtype, numbers)


def state_of_stacks(
    self: Any, params: Params, division: Division, make: Callable[[Any, Any], PyTree]
) -> Stacks:
    """`make(own, zeros)`: `self` for the stacks, and zeros instead of parameters."""
    stacks = _stacks(self, params, params, division)
    own = _of_stacks(self, stacks)

    def of_share():
        each = [jnp.zeros((x.size // division.size, *x.shape), x.dtype) for x in stacks]
        return make(own, each)

    run = division.on_shares(of_share, (), division.first)
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    leaves, axes = [x.leaves for x in stacks], [x.divided for x in stacks]
    return Stacks(run(), tuple(leaves), tuple(axes), treedef)


def update_in_stacks(
    self: Any,
    updates: Updates,
    state: State,
    params: Params | None,
    division: Division,
) -> tuple[Updates, State]:
    """`self.update`, where each device computes its share of each stack."""
    stacks = _stacks(self, updates, params, division)
    _check_fits(self, state, stacks, division)
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    given = [x.joined(leaves, division) for x in stacks]
    own = _of_stacks(self, stacks)
    arrays, others = eqx.partition((own, _unwrapped(state)), eqx.is_array)

    def of_share(given, arrays):
        own, state = eqx.combine(arrays, others)
        return own.update(given, state)

    first = division.first
    specs = jax.tree.map(lambda x: first if x.ndim else P(), arrays)
    run = division.on_shares(of_share, (first, specs), (first, specs[1]))
    new, new_state = run(given, arrays)
    for stack, x in zip(stacks, new, strict=True):
        for i, part in stack.parts(x, division).items():
            leaves[i] = sharded_like(leaves[i], part)
    wrapped = jax.tree.map(
        lambda old, x: dataclasses.replace(old, arrays=x) if is_stacks(old) else x,
        state,
        new_state,
        is_leaf=is_stacks,
    )
    return treedef.unflatten(leaves), wrapped


def _of_stacks(self: Any, stacks: list[_Stack]) -> Any:
    numbers = [x.numbers for x in stacks]
    return dataclasses.replace(self, weight_dimension_numbers=numbers)


def _unwrapped(state: State) -> State:
    return jax.tree.map(
        lambda x: x.arrays if is_stacks(x) else x, state, is_leaf=is_stacks
    )


def _found(state: State) -> list[Stacks]:
    slots = jax.tree.leaves(state, is_leaf=is_stacks)
    return [x for x in slots if is_stacks(x)]


def check_stacks(self: Any, state: State, division: Division | None) -> None:
    """Raises an error if only one of state and step has stacks."""
    if bool(_found(state)) == (division is None):
        message = _MADE_WITH if division is None else _MADE_WITHOUT
        raise ValueError(message.format(type(self).__name__))


def _check_fits(
    self: Any, state: State, stacks: Sequence[_Stack], division: Division
) -> None:
    expected = tuple(x.leaves for x in stacks)
    for slot in _found(state):
        if slot.leaves != expected:
            raise ValueError(
                f"{type(self).__name__}: `updates` has matrices at the leaves "
                f"{expected}, but the parameters given to `init` had {slot.leaves}, "
                "where those in one pair of parentheses are equal. In "
                "`eqopt.DistributeMatrices`, each matrix needs an update."
            )
        for stack, own in zip(stacks, slot.arrays, strict=True):
            for x in jax.tree.leaves(own):
                if len(x) != stack.size:
                    raise ValueError(
                        f"{type(self).__name__}: `state` has a stack of {len(x)} "
                        f"matrices, but on {division.size} devices it has "
                        f"{stack.size}. A state of `eqopt.DistributeMatrices` is for "
                        "one number of devices: call `eqopt.tree.migrate`."
                    )


_MADE_WITH = (
    "{}: `state` has stacks of matrices for several devices, which "
    "`eqopt.DistributeMatrices` made. Use the same wrapper and devices in `update`, or "
    "call `eqopt.tree.migrate`."
)
_MADE_WITHOUT = (
    "{}: `eqopt.DistributeMatrices` divides the state between devices, but `state` was "
    "made without it. Call `eqopt.tree.migrate`, or its own `init`."
)
