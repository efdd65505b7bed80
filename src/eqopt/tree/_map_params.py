"""The leaves of a state that stand for parameters."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._trees.leaves import is_leaf, parameters
from .._trees.stored import is_stored
from .._types import Params, PyTree, State
from ._slots import TREES, declared, found_in, without_padding
from ._together import column_of


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: State,
    /,
    *rest: PyTree,
    params: Params | None = None,
    transform_non_params: Callable[[Any], Any] | None = None,
) -> PyTree:
    """Applies `f` to the leaves of an optimizer's state that stand for parameters.

    Use it for shardings that follow the parameters, or to move averages to the host.

    A leaf of the state *stands for a parameter* if a field of the state is a tree with
    the structure of the parameters, and the leaf has the position and the shape of that
    parameter in it. This includes first and second moments, averages, and copies of the
    parameters. It excludes counts, keys, learning rates and other fields whose class
    [declares a number](../writing_a_transformation.md#the-whole-tree-at-once), factors,
    Adafactor's sums over rows and columns, and all vectors of [`eqopt.Flatten`][].
    Leaves that [`eqopt.ZeRO1`][] has padded are included.

    !!! example

        ```python
        specs = jax.tree.map(spec_of, eqx.filter(model, eqx.is_inexact_array))
        state_specs = eqopt.tree.map_params(
            opt,
            lambda _, spec: spec,
            state,
            specs,
            params=model,
            transform_non_params=lambda _: jax.sharding.PartitionSpec(),
        )
        ```

    **Arguments:**

    - `initable`: the optimizer, or its `init`.
    - `f`: a function of such a leaf and the leaves of `rest` for the same parameter.
    - `state`: the state that `init` or `update` returned. If `params` is given, it may
        also be abstract, or the result of another `map_params`.
    - `rest`: trees with the structure of the parameters, with any leaves.
    - `params`: the parameters, or the whole model, that the state belongs to; its
        arrays may be `jax.ShapeDtypeStruct`s. With `None`, the default, the parameters
        are inferred from the trees that the classes of the state declare. This fails
        if none of them has the shapes of the parameters. A state without a class needs
        `params`.
    - `transform_non_params`: a function that is applied to all other leaves. By
        default, they stay unchanged.

    **Returns:**

    A tree like `state`.

    **Raises:**

    A `ValueError` if `state` is not a state of `initable` for `params`, if the
    parameters cannot be inferred, or if a tree of `rest` has another structure.
    """
    init = getattr(initable, "init", initable)
    if params is None:
        params, abstract = _inferred(init, state), state
    else:
        abstract = eqx.filter_eval_shape(init, params)
    treedef = jtu.tree_structure(abstract, is_leaf=is_stored)
    values = column_of("map_params", treedef, "state", state, "init(params)", abstract)
    arrays = parameters(params)
    structure = jtu.tree_structure(arrays, is_leaf=is_leaf)
    columns = [
        column_of("map_params", structure, f"rest[{i}]", tree, "params", arrays)
        for i, tree in enumerate(rest)
    ]
    other = transform_non_params or (lambda x: x)
    return treedef.unflatten(
        other(x) if place is None else f(x, *(column[place] for column in columns))
        for x, (_, place, _) in zip(values, found_in(params, abstract), strict=True)
    )


def _inferred(init: Callable, state: State) -> Params:
    """Parameters for which `init` would return `state`; only their shapes matter.

    One of the slots has the structure of the parameters. The largest shapes in slots
    like it are the shapes of the parameters, if `init` makes a tree like `state` from
    them.
    """
    slots: dict[Any, list[list]] = {}
    for tree in _declared(without_padding(state), "state"):
        leaves, structure = jtu.tree_flatten(tree, is_leaf=is_leaf)
        if any(x is not None for x in leaves):
            slots.setdefault(structure, []).append(leaves)
    for structure, rows in slots.items():
        params = structure.unflatten(map(_largest, zip(*rows, strict=True)))
        if _is_state_of(init, params, state):
            return params
    if slots:
        raise InputError(
            "map_params",
            "the parameters cannot be inferred from this `state` of this optimizer. "
            "Pass the model: `params=model`.",
        )
    return None


def _declared(node: Any, kind: str) -> Iterator[Any]:
    """The trees in a state that its classes declare."""
    if kind in TREES:
        yield node
    elif not is_stored(node):
        for _, child, below in declared(node, kind):
            yield from _declared(child, below)


def _largest(leaves: tuple) -> jax.ShapeDtypeStruct | None:
    shapes = [x.shape for x in leaves if hasattr(x, "shape")]
    by_size = lambda shape: (len(shape), shape)
    return jax.ShapeDtypeStruct(max(shapes, key=by_size), "float32") if shapes else None


def _is_state_of(init: Callable, params: Params, state: State) -> bool:
    try:
        with warnings.catch_warnings():  # about parameters that the user does not have
            warnings.simplefilter("ignore")
            other = eqx.filter_eval_shape(init, params)
    except Exception:
        return False
    return _form(other) == _form(state)


def _form(state: State) -> Any:
    leaves, structure = jtu.tree_flatten(state)
    return structure, [*map(np.shape, leaves)]
