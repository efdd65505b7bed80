"""Rules that say which arrays are matrices, or stacks of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.tree_util as jtu

from .._arguments.checks import check_integer
from .._errors import InputError, naming
from .._matrices import (
    MatrixDimensionNumbers,
    Named,
    Own,
    Unknown,
    as_tuple,
    by_class,
    named_leaves,
    of_layers,
    of_own,
)
from .._trees.leaves import is_leaf, is_parameter
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree
from ._selectors import Selector, check_in_time, check_matches, where


def layer_matrices(params: Params) -> PyTree[MatrixDimensionNumbers]:
    """The matrices in a model, as the methods for matrices find them.

    - Weights of `eqx.nn.Linear`, convolutions and recurrent cells, stacked or not. Other
        arrays of the layers of Equinox, such as embeddings, norms and biases, are not
        matrices.
    - If a module replaces such a weight, as for weight normalisation, its array with the
        shape of the weight is the matrix, and its other arrays are not.
    - Arrays with named axes, as in haliax, are what their layer names them. `In` and
        `Out` make a matrix, also with several axes each, and `Block` is a stack.
        Embeddings, norms and biases are not matrices.
    - Arrays with two axes that are in no such layer, with the inputs first.
    - If a module or container has stacked layers, made with `eqx.filter_vmap`, and all of
        its arrays have the axes of the stack first, it counts as stacked. Its own arrays
        then are stacks of what they are in a single layer: `(layers, width)` is a stack
        of vectors, and `(layers, inputs, outputs)` a stack of matrices.

    Nothing says whether any other array with three or more axes is a stack of matrices.
    Here, it is not a matrix. If a method for matrices has no
    `weight_dimension_numbers`, it raises an error for such an array. Use
    [`eqopt.groups.matrices`][] and [`eqopt.groups.stacked`][] to say what it is, and
    [`eqopt.groups.routes`][] to see what an optimizer makes of it.

    !!! example

        ```python
        print(eqopt.groups.table(eqopt.groups.layer_matrices, model))
        ```

    **Arguments:**

    - `params`: the model.

    **Returns:**

    A tree of [`eqopt.MatrixDimensionNumbers`][] with the structure of `params`, and
    `None` at leaves that are not matrices.
    """
    _, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    numbers = of_layers(shapes_if_stored(params))
    return treedef.unflatten(None if n is Unknown else n for n in numbers)


# Axes by their positions, or, of an array with named axes, by their names.
Axes: TypeAlias = int | str | Sequence[int] | Sequence[str]


@dataclasses.dataclass(frozen=True)
class Stack:
    """The parameters are stacked along their first axes, so many."""

    axes: int


@dataclasses.dataclass(frozen=True)
class Matrix:
    """The parameters are matrices with these axes and blocks."""

    inputs: Axes
    outputs: Axes
    blocks: tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class MatrixRules:
    """Rules for matrices, made by the functions on this page, and joined with `|`.

    It is a function of the parameters that returns a tree of
    [`eqopt.MatrixDimensionNumbers`][] and `None`, so you can use it wherever
    `weight_dimension_numbers` is accepted, and as the `block_axes` of
    [`eqopt.AdamMini`][]. The first rule that matches a parameter decides. What no rule
    matches is what [`eqopt.groups.layer_matrices`][] finds, but an array that may be a
    stack or not is an error: also an array with two axes, if an array next to it is a
    stack of that size.

    **Raises:**

    When it is called with the parameters, a `ValueError` that names the key path if a
    rule matches nothing in the whole model, or does not fit.
    """

    rules: tuple[tuple[Selector, Any], ...]

    def __or__(self, other: "MatrixRules") -> "MatrixRules":
        return MatrixRules(self.rules + other.rules)

    @naming("eqopt.groups")
    def __call__(self, params: Params) -> PyTree:
        params = shapes_if_stored(params)
        treedef = jtu.tree_structure(params, is_leaf=is_leaf)
        return treedef.unflatten(numbers for numbers, _ in self.decide(params))

    def decide(self, params: Params) -> list[tuple[Any, int]]:
        """The numbers of each leaf, and the axes of the stack that a rule gives it."""
        pairs = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)[0]
        paths, leaves = [path for path, _ in pairs], [x for _, x in pairs]
        by_layer, named = by_class(params), named_leaves(params)
        found: list[Any] = [(numbers, 0) for numbers in of_layers(params)]
        open_: set[int] = {i for i, x in enumerate(leaves) if is_parameter(x)}
        for selector, rule in self.rules:
            chosen = _chosen(selector, params, leaves)
            new = open_ & {*chosen}
            check_in_time(selector.description, new)
            if new and isinstance(rule, Stack):
                check_stack(rule.axes, [(paths[i], leaves[i]) for i in chosen])
            for i in new:
                if isinstance(rule, Matrix):
                    found[i] = _numbers(rule, named[i], jtu.keystr(paths[i])), 0
                elif isinstance(rule, Stack):
                    is_own = by_layer[i] is Own
                    own = of_own(leaves[i].ndim, rule.axes) if is_own else found[i][0]
                    found[i] = own, rule.axes
                else:
                    found[i] = None, 0
            open_ -= new
        for i in open_:
            if by_layer[i] is Own and leaves[i].ndim == 2:
                near = [j for j in range(len(leaves)) if paths[j][:-1] == paths[i][:-1]]
                if any(_is_stack(leaves[j], found[j][0], leaves[i]) for j in near):
                    found[i] = Unknown, 0
        return found


def stacked(part: Callable[[Any], Any] | Selector, axes: int = 1) -> MatrixRules:
    """Says that all arrays in a part of the model are stacks: of layers, or of experts.

    Each array then is a stack of what it is in a single layer: `(layers, width)` is a
    stack of vectors, and `(layers, inputs, outputs)` a stack of matrices, inputs first.
    Layers of Equinox and of haliax show their stacks, so they need no rule.

    !!! example

        ```python
        # Arrays of your own, all with an axis of layers first:
        numbers = eqopt.groups.stacked(lambda model: model.blocks)
        opt = eqopt.Muon(0.02, weight_dimension_numbers=numbers)
        ```

    It also marks a part as a stack of layers for [`eqopt.groups.layerwise_decay`][].

    **Arguments:**

    - `part`: a function of the model that returns a part of it, or a tuple of parts; or
        a selector, such as [`eqopt.groups.path`][].
    - `axes`: the number of axes of the stack, which come first. Defaults to 1.

    **Returns:**

    An [`eqopt.groups.MatrixRules`][].
    """
    check_integer("axes", axes, 1)
    selector = part if isinstance(part, Selector) else where(part, required=False)
    return MatrixRules(((selector, Stack(axes)),))


def matrices(
    selector: Selector,
    inputs: Axes,
    outputs: Axes,
    input_blocks: int | Sequence[int] = 1,
    output_blocks: int | Sequence[int] = 1,
) -> MatrixRules:
    """Says which axes of some arrays are the inputs and outputs of matrices.

    All other axes are stacks of matrices.

    !!! example

        ```python
        from eqopt.groups import matrices, no_matrices, path

        # Kernels of shape (layers, width, 3, heads, size), and a named array of haliax:
        numbers = (
            matrices(path("qkv"), inputs=-4, outputs=(-2, -1))
            | matrices(path("gate"), inputs="embed", outputs=("heads", "head_size"))
            | no_matrices(path("embedding|head"))
        )
        opt = eqopt.Muon(0.02, weight_dimension_numbers=numbers)
        print(eqopt.groups.routes(opt, model))
        ```

    **Arguments:**

    - `selector`: the arrays, such as [`eqopt.groups.path`][].
    - `inputs`: the axis, or the axes, that the layer sums over. Negative ones count from
        the end. Use names for arrays with named axes.
    - `outputs`: the axis, or the axes, of the outputs.
    - `input_blocks`, `output_blocks`: the blocks into which the first axis of that side
        is split, such as attention heads: their number, or their sizes. Each block is a
        separate matrix. See [`eqopt.MatrixDimensionNumbers`][]. Defaults to 1.

    **Returns:**

    An [`eqopt.groups.MatrixRules`][].
    """
    blocks = _hashable(input_blocks), _hashable(output_blocks)
    rule = Matrix(_hashable(inputs), _hashable(outputs), blocks)
    return MatrixRules(((selector, rule),))


def no_matrices(selector: Selector) -> MatrixRules:
    """Says that some arrays are not matrices, such as embeddings and the last layer.

    Methods for matrices then train them with their `fallback`.

    **Arguments:**

    - `selector`: the arrays, such as [`eqopt.groups.path`][].

    **Returns:**

    An [`eqopt.groups.MatrixRules`][].
    """
    return MatrixRules(((selector, None),))


def _hashable(axes: Any) -> Any:
    return axes if isinstance(axes, int | str) else tuple(axes)


def _chosen(selector: Selector, params: Params, leaves: list[Any]) -> list[int]:
    flags = selector.choose(params)
    chosen = [i for i, x in enumerate(leaves) if flags[i] and is_parameter(x)]
    check_matches(selector.description, chosen, params)
    return chosen


def check_stack(axes: int, arrays: list[tuple[tuple, Any]]) -> tuple[int, ...]:
    """The first axes of arrays with these paths; raises if they are not the same."""
    (path, like), *_ = arrays
    size = tuple(like.shape[:axes])
    for other, x in arrays:
        if len(size) < axes or tuple(x.shape[:axes]) != size:
            raise InputError(
                f"all arrays of a stack must have the same first axes (here {axes}), but "
                f"`{jtu.keystr(other)}` has shape {tuple(x.shape)}, and "
                f"`{jtu.keystr(path)}` has shape {tuple(like.shape)}."
            )
    return size


def _numbers(rule: Matrix, named: Named | None, path: str) -> MatrixDimensionNumbers:
    names = None if named is None else named.names
    inputs = _by_position(rule.inputs, names, path)
    outputs = _by_position(rule.outputs, names, path)
    of_inputs, of_outputs = rule.blocks
    return MatrixDimensionNumbers(
        inputs, outputs, reduction_blocks=of_inputs, output_blocks=of_outputs
    )


def _by_position(axes: Any, names: Any, path: str) -> Any:
    given = (axes,) if isinstance(axes, str) else as_tuple(axes)
    if not any(isinstance(axis, str) for axis in given):
        return axes
    missing = [axis for axis in given if axis not in (names or ())]
    if missing:
        has = "no names" if names is None else f"the axes {names}"
        raise InputError(f"no axis {missing[0]!r} in `{path}`, which has {has}.")
    return tuple(names.index(axis) for axis in given)


def _is_stack(x: Any, numbers: Any, like: Any) -> bool:
    """Whether `x` is a stack, or may be one, of as many entries as `like` has rows."""
    if not is_parameter(x) or x.ndim < 3 or x.shape[0] != like.shape[0]:
        return False
    if not isinstance(numbers, MatrixDimensionNumbers):
        return numbers is Unknown
    sides = as_tuple(numbers.reduction_axis), as_tuple(numbers.output_axis)
    return not any(axis in (0, -x.ndim) for side in sides for axis in side)
