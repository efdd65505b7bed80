"""The leaves of a state that stand for parameters."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._trees.leaves import disagreement, is_leaf, parameters
from .._trees.roles import check_is_state
from .._trees.stored import is_stored
from .._types import Params, State
from ._places import guessed, places_of
from ._search import _children
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

    A leaf of the state *stands for a parameter* if the state has a tree with the
    structure of the parameters, and the leaf has the position and the shape of that
    parameter in it. This includes first and second moments, averages, and copies of the
    parameters. It excludes counts, keys, learning rates, NovoGrad's scalar for each
    array, Adafactor's sums over rows and columns, and all vectors of
    [`eqopt.Flatten`][]. Leaves that [`eqopt.ZeRO1`][] has padded are included.

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
        are inferred from the state. This fails if a mask is a tree instead of a
        function, or if the state has no tree with the shapes of the parameters.
    - `transform_non_params`: a function that is applied to all other leaves. By
        default, they stay unchanged.

    **Returns:**

    A tree like `state`.

    **Raises:**

    A `ValueError` if `state` is not a state of `initable` for `params`, if the
    parameters cannot be inferred, or if a tree of `rest` has another structure.
    """
    init = getattr(initable, "init", initable)
    if not callable(init):
        raise TypeError(
            "map_params: `initable` must be an optimizer or its `init`, but is of type "
            f"`{type(initable).__name__}`. Call `map_params(opt, fn, state)`, in this "
            "order."
        )
    check_is_state("map_params", "state", state)
    if params is None:
        params = _inferred(init, state)
        abstract = guessed(init, params)
    else:
        abstract = eqx.filter_eval_shape(init, params)
    values, treedef = _values(state, abstract)
    places = places_of(init, params, abstract)
    arrays = parameters(params)
    structure = jtu.tree_structure(arrays, is_leaf=is_leaf)
    columns = [
        column_of("map_params", structure, f"rest[{i}]", tree, "params", arrays)
        for i, tree in enumerate(rest)
        if not isinstance(params, _Anything)
    ]
    other = transform_non_params or (lambda x: x)
    return treedef.unflatten(
        other(x) if place is None else f(x, *(column[place] for column in columns))
        for x, place in zip(values, places, strict=True)
    )


def _values(state: State, abstract: PyTree) -> tuple[list, Any]:
    """The leaves of `state` at the leaves of `abstract`, and the inverse."""
    treedef = jtu.tree_structure(abstract, is_leaf=is_stored)
    try:
        return treedef.flatten_up_to(state), treedef
    except (ValueError, TypeError):
        # If the parameters were not given, a static field that counts them differs.
        found, structure = jtu.tree_flatten_with_path(state, is_leaf=is_stored)
        expected = jtu.tree_leaves_with_path(abstract, is_leaf=is_stored)
        if [path for path, _ in found] == [path for path, _ in expected]:
            return [x for _, x in found], structure
        raise ValueError(
            f"map_params: {disagreement('state', state, 'init(params)', abstract)} Pass "
            "the optimizer and the model that the state belongs to."
        ) from None


class _Anything(eqx.Module):
    """Represents all parameters: a tree without leaves, and so are trees made from it."""


def _inferred(init: Callable, state: State) -> Params:
    """Parameters for which `init` would return `state`; only their shapes matter.

    `init` leaves `_Anything` at the positions of trees like the parameters. One of
    these trees has the structure of the parameters. The largest shapes in it are the
    shapes of the parameters, or the smallest if others are stacks. Candidates are
    correct if `init` makes a tree like `state` from them.
    """
    try:
        marked = guessed(init, _Anything())
        trees = [*_at_marks(marked, state)]
    except Exception as error:
        raise ValueError(_UNKNOWN) from error
    if not trees:
        return _Anything()
    alike = {}
    for tree in trees:
        leaves, structure = jtu.tree_flatten(tree, is_leaf=is_leaf)
        alike.setdefault(structure, []).append(leaves)
    for (structure, rows), pick in itertools.product(alike.items(), (max, min)):
        columns = zip(*rows, strict=True)
        params = structure.unflatten(_picked(pick, column) for column in columns)
        if _is_state_of(init, params, state):
            return params
    raise ValueError(_UNKNOWN)


def _at_marks(marked: Any, state: Any) -> Iterator[Any]:
    """The parts of `state` at the marks. Static fields may differ."""
    if isinstance(marked, _Anything):
        yield state
    elif not jtu.all_leaves([marked]):
        for (key, x), (other_key, y) in zip(
            _children(marked), _children(state), strict=True
        ):
            if key != other_key:
                raise ValueError
            yield from _at_marks(x, y)


_UNKNOWN = (
    "map_params: the parameters cannot be inferred from `state`. Either its trees do "
    "not contain all shapes, or it belongs to another optimizer. Pass the model: "
    "`params=model`."
)


def _picked(pick: Callable, leaves: tuple) -> jax.ShapeDtypeStruct | None:
    arrays = [x for x in leaves if hasattr(x, "shape")]
    # A flag says which shape the parameter has only if nothing else does.
    arrays = [x for x in arrays if x.dtype != bool] or arrays
    if not arrays:
        return None
    shape = pick((x.shape for x in arrays), key=lambda shape: (len(shape), shape))
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _is_state_of(init: Callable, params: Params, state: State) -> bool:
    try:
        other = guessed(init, params)
    except Exception:
        return False
    return jtu.tree_structure(other) == jtu.tree_structure(state) and all(
        getattr(x, "shape", None) == getattr(y, "shape", None)
        for x, y in zip(jtu.tree_leaves(other), jtu.tree_leaves(state), strict=True)
    )
