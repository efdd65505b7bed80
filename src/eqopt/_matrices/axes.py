"""The roles of the axes of an array that represents a matrix or a stack of matrices."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeAlias

import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._trees.leaves import is_leaf, is_parameter, keystr, listed, parameters
from .._trees.masks import is_function, resolve
from .._trees.parts import seeing_part
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree
from .dimension_numbers import MatrixDimensionNumbers, Unknown, as_tuple
from .named import named_leaves
from .recognition import of_layers


# A tree of `MatrixDimensionNumbers` and `None` like the parameters or a prefix of it,
# or a function of the parameters that returns one. (It is checked below, for a better
# message.)
DimensionNumbers: TypeAlias = PyTree | Callable[[Params], PyTree]


def resolve_dimension_numbers(
    given, tree, params, default=of_layers, is_required=False, takes_blocks=True
) -> "list[Axes | None]":
    """The axes of each leaf of `tree` (counting `None`s); `None` if not a matrix.

    **Arguments:**

    - `given`: a tree of `MatrixDimensionNumbers` and `None` like the parameters or a
        prefix of them, a function of the parameters that returns one, or `None` for
        `default(tree)`. A single `MatrixDimensionNumbers` applies to all arrays with at
        least two axes.
    - `tree`: parameters or updates.
    - `params`: the argument of `given` or `default`. If `None`, it is `tree`, which are
        updates, maybe of a part of the parameters.
    - `is_required`: whether to raise an error for an `Unknown` array, which otherwise is
        not a matrix.
    - `takes_blocks`: whether blocks within a matrix are allowed.
    """
    tree, params = shapes_if_stored(tree), shapes_if_stored(params)
    leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
    if callable(given) and is_function(given):
        whole = parameters(tree if params is None else params)
        if params is None:  # updates may lack some parameters
            given = seeing_part(whole)(given)
        given = given(whole)
    numbers: list[Any]
    if given is None:
        numbers = _by_default(default, tree, tree if params is None else params)
    elif isinstance(given, MatrixDimensionNumbers):
        numbers = [given if np.ndim(x) >= 2 else None for x in leaves]
    else:
        numbers = resolve("weight_dimension_numbers", given, tree, params)
    if is_required:
        check_known("weight_dimension_numbers", tree, leaves, numbers)
    return [
        None
        if n is None or n is Unknown or not is_parameter(x)
        else axes_of(n, x, keystr(tree, i), takes_blocks)
        for i, (n, x) in enumerate(zip(numbers, leaves, strict=True))
    ]


def _by_default(default: Callable[[PyTree], list], tree, params) -> list:
    """`default(params)` for each leaf of `tree`, which may lack some parameters."""
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    numbers = treedef.unflatten(default(params))
    try:
        return jtu.tree_structure(tree, is_leaf=is_leaf).flatten_up_to(numbers)
    except (ValueError, TypeError):  # of other structures, which is reported elsewhere
        return default(tree)


def check_known(owner: str, tree: PyTree, leaves: list, numbers: list) -> None:
    """Raises an error if the numbers of a parameter in `tree` are `Unknown`.

    `owner` is the argument that can say more.
    """
    unknown = [
        i for i, n in enumerate(numbers) if n is Unknown and is_parameter(leaves[i])
    ]
    if not unknown:
        return
    first, *others = unknown
    named = named_leaves(tree)[first]
    axes = "" if named is None else f" and the axes {named.names}"
    more = f", like {listed([keystr(tree, i) for i in others])}" if others else ""
    raise InputError(
        f"`{keystr(tree, first)}` has shape {leaves[first].shape}{axes}, and no layer of "
        f"Equinox says which axes are a matrix{more}. Pass `{owner}=eqopt.groups."
        "matrices(selector, inputs=-2, outputs=-1)`, or "
        "`eqopt.groups.no_matrices(selector)`."
    )


def map_matrices(
    fn: Callable[["Axes", Any], Any],
    given: DimensionNumbers | None,
    tree: PyTree,
    params: Params | None,
    otherwise: Callable[[Any], Any] = lambda x: None,
    takes_blocks: bool = True,
) -> PyTree:
    """`tree` with `fn(axes, x)` for each matrix `x`, and `otherwise(x)` elsewhere."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    axes = resolve_dimension_numbers(given, tree, params, takes_blocks=takes_blocks)
    pairs = zip(axes, leaves, strict=True)
    return treedef.unflatten(otherwise(x) if a is None else fn(a, x) for a, x in pairs)


class Axes(NamedTuple):
    """`MatrixDimensionNumbers` of one array: its axes, all counted from the front."""

    stack: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]
    blocks: tuple[tuple[int, tuple[int, ...]], ...] = ()  # split axes, and their blocks

    def matrices(self, shape: tuple[int, ...]) -> Iterator[tuple[tuple, int, int]]:
        """The outputs and inputs of each block, and its place among the split axes."""
        each = [enumerate(sizes) for _, sizes in self.blocks]
        for block in itertools.product(*each):
            own = list(shape)
            for (axis, _), (_, n) in zip(self.blocks, block, strict=True):
                own[axis] = n
            place = tuple(i for i, _ in block)
            yield place, size(own, self.output), size(own, self.reduction)

    def map_blocks(self, shape: tuple[int, ...], fn: Callable[[int, int], Any]) -> Any:
        """`fn(outputs, inputs)`: a number, or an array if it differs between blocks."""
        found = {place: fn(*sides) for place, *sides in self.matrices(shape)}
        if len({*found.values()}) == 1 or None in found.values():
            return next(iter(found.values()))
        array = np.ones([1] * len(shape))
        for axis, sizes in self.blocks:
            array = np.repeat(array, sum(sizes), axis)
        ends = {axis: np.cumsum((0, *sizes)) for axis, sizes in self.blocks}
        for place, value in found.items():
            own: list[slice] = [slice(None)] * len(shape)
            for (axis, _), i in zip(self.blocks, place, strict=True):
                own[axis] = slice(ends[axis][i], ends[axis][i + 1])
            array[tuple(own)] = value
        return array


def size(shape, axes):
    """The number of elements along some axes together, for an array of this shape."""
    return math.prod(shape[axis] for axis in axes)


def axes_of(numbers: Any, x: Any, path: str, takes_blocks: bool = True) -> Axes:
    """The axes of an array at this path, checked."""

    def reject(reason: str) -> NoReturn:
        misfit = f"{numbers!r} does not fit `{path}`, which has shape {x.shape}."
        raise InputError(f"{misfit} {reason}")

    if not isinstance(numbers, MatrixDimensionNumbers):
        reject(
            "`weight_dimension_numbers` must hold `eqopt.MatrixDimensionNumbers`, or "
            "`None` for a leaf that is not a matrix."
        )
    reduction, output = (
        tuple(axis + x.ndim if axis < 0 else axis for axis in as_tuple(axes))
        for axes in (numbers.reduction_axis, numbers.output_axis)
    )
    named = reduction + output
    if len({*named}) < len(named) or not all(0 <= axis < x.ndim for axis in named):
        reject(
            f"Each axis must be one of the {x.ndim} axes of the array, and have only "
            "one role."
        )
    stack = tuple(axis for axis in range(x.ndim) if axis not in named)
    given = (reduction, numbers.reduction_blocks), (output, numbers.output_blocks)
    blocks = [
        (side[0] if side else None, blocks)
        for side, blocks in given
        if blocks != 1 and blocks != (x.shape[side[0]] if side else 1,)
    ]
    if blocks and not takes_blocks:
        reject("The matrix must be whole. Omit `reduction_blocks` and `output_blocks`.")
    for axis, sizes in blocks:
        n = 1 if axis is None else x.shape[axis]
        if n % sizes if isinstance(sizes, int) else sum(sizes) != n:
            what = "divide" if isinstance(sizes, int) else "add up to"
            reject(
                f"The blocks must {what} the size {n} of the first axis of their side."
            )
    return Axes(stack, reduction, output, tuple(_sizes(x, *b) for b in blocks))


def _sizes(x, axis, blocks):
    """The axis, and the sizes of its blocks."""
    is_count = isinstance(blocks, int)
    return axis, (x.shape[axis] // blocks,) * blocks if is_count else tuple(blocks)
