"""Presents all parameters as one vector."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.extra import with_functions
from .._combinators.chain import Chain, NamedChain
from .._core import (
    AbstractOptimizer,
    AbstractTransformation,
    AbstractWrapper,
    Call,
    add_updates,
    widened,
)
from .._errors import InputError
from .._trees.keys import keys_of_part
from .._trees.leaves import flatten_updates, is_leaf, keystr, parameters, restrict
from .._trees.routes import Report
from .._trees.sharding import in_explicit_shards, unsharded
from .._trees.states import check_state
from .._trees.stored import full_params, hides_params
from .._types import Model, Params, PyTree, State
from ..numerics._numerics import common_dtype


class FlattenState(eqx.Module):
    """The state of [`eqopt.Flatten`][].

    **Attributes:**

    - `inner_state`: the state of the inner transformation, of one vector.
    - `shapes`: the shape of each leaf in that vector, and `None` for each other leaf,
        static.
    """

    inner_state: State
    shapes: tuple[tuple[int, ...] | None, ...] = eqx.field(static=True)

    @property
    def _layout_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """For checkpoints: they determine where each leaf is in the vector."""
        return self.shapes

    def _full_params(self, params: Params) -> Params:
        # The hidden part of the vector belongs to no parameter.
        change = functools.partial(full_params, self.inner_state)
        return self._with_vector(params, change)

    def _with_vector(self, params: Params, change: Callable[[Array], Array]) -> Params:
        """`params` with another vector."""
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        if len(leaves) == len(self.shapes):
            pairs = zip(leaves, self.shapes, strict=True)
            leaves = [None if shape is None else x for x, shape in pairs]
        _check_shapes("params", params, leaves, self.shapes)
        flat = _joined(leaves)
        new = change(flat)
        if new.dtype != flat.dtype:
            leaves = [None if x is None else x.astype(new.dtype) for x in leaves]
        return eqx.combine(_unflatten(new, leaves, treedef), params)


class Flatten(AbstractWrapper):
    """Makes the inner transformation see all parameters as one vector.

    For a model with very many small leaves, this reduces the work of tracing and
    launching. The price is that the leaves are copied into the vector and back: a step
    needs a copy of the gradients, and a copy of the parameters if they are used, for
    example by weight decay or by wrappers. Transformations that treat a leaf as a whole
    (trust ratios, factored moments) become another algorithm, because the whole model
    is their only leaf.

    Leaves of different dtypes are promoted to a common dtype: with float32 and bfloat16
    parameters, the vector and the inner state are float32; with float32 and complex64
    parameters, they are complex64. Updates are returned in their own dtypes.

    **Arguments:**

    - `inner`: the transformation.

    **Raises:**

    In `update`, a `ValueError` that names the key path, unless exactly the parameters
    that were given to `init` have an update.
    """

    _loads = "params"

    inner: AbstractTransformation

    def _route(self, report: Report, params: Params) -> None:
        with report.inside(type(self).__name__):  # one vector, so nothing is a matrix
            report.take(type(self.inner).__name__, params)

    def init(self, params: Params) -> FlattenState:
        leaves = jtu.tree_leaves(parameters(params), is_leaf=is_leaf)
        shapes = tuple(None if x is None else tuple(x.shape) for x in leaves)
        state = keys_of_part(self.inner.init(_joined(leaves)), params)
        return FlattenState(state, shapes)

    def handle(self, call: Call, state: FlattenState) -> tuple[Any, State]:
        updates, params, extra, is_step, _ = call
        leaves, treedef = flatten_updates(updates)
        _check_shapes("updates", updates, leaves, state.shapes)
        to_vector = lambda name, tree: _joined(
            jtu.tree_leaves(restrict(tree, updates, name))
        )
        for name in ("grad", "previous_grad", "sum_sq_diff_grads"):
            if extra.get(name) is not None:
                extra = {**extra, name: to_vector(name, extra[name])}
        old, flat_params = [], None
        if params is not None:
            part = parameters(restrict(params, updates))
            old = jtu.tree_leaves(part, is_leaf=is_leaf)
            _check_shapes("params", params, old, state.shapes)
            flat_params = _joined(old)
            to_model = lambda flat: eqx.combine(_unflatten(flat, old, treedef), params)
            of_grads = functools.partial(to_vector, "grad_fn(params)")
            extra = with_functions(extra, to_model, of_grads)
        only_adds = isinstance(self.inner, AbstractOptimizer | Chain | NamedChain)
        adds = is_step and only_adds and not hides_params(state)
        if adds:
            # Adding the updates to a vector would copy all parameters, even if they are
            # not used, and save nothing. Wrappers are excluded because their steps do
            # more than add, and so does `StoreParams` in a chain.
            is_step = False
            leaves, _ = flatten_updates(widened(updates))  # only the sum is rounded
        of_vector = Call(_joined(leaves), flat_params, extra, is_step)
        flat, inner_state = of_vector.run(self.inner, state.inner_state)
        result = _unflatten(flat, old if is_step else leaves, treedef)
        if adds:
            result = add_updates(params, result)
        elif is_step:
            result = eqx.combine(result, params)
        return result, FlattenState(inner_state, state.shapes)

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        of_vector = functools.partial(self.inner.eval_params, state.inner_state)
        return state._with_vector(params, of_vector)


def _check_shapes(name: str, tree: PyTree, leaves: list, shapes: Sequence) -> None:
    """Raises an error for leaves of another model than in `init`.

    If the total size is the same, values would meet the state of other elements.
    """
    found = ["no array" if x is None else f"shape {x.shape}" for x in leaves]
    expected = ["no array" if shape is None else f"shape {shape}" for shape in shapes]
    if len(found) != len(expected):
        here, there = f"{len(found)} leaves", f"{len(expected)}"
    elif found != expected:
        pairs = zip(found, expected, strict=True)
        i, here, there = next((i, x, y) for i, (x, y) in enumerate(pairs) if x != y)
        here = f"{here} at `{keystr(tree, i)}`"
    else:
        return
    raise InputError(
        f"`{name}` has {here}, but the parameters given to `init` had {there}. "
        "To train a part, call `init(eqx.filter(model, is_trained))`, or put `Flatten` "
        "inside `eqopt.SelectiveTransform(opt, freeze_mask=...)`."
    )


def _joined(leaves: list) -> Inexact[Array, " size"]:
    """The vector of all arrays, without the leaves that are `None`."""
    arrays = [x for x in leaves if x is not None]
    if not arrays:
        return jnp.zeros(0)
    dtype = common_dtype(*(x.dtype for x in arrays))
    return jnp.concatenate([_as(unsharded(x).reshape(-1), dtype) for x in arrays])


def _unflatten(flat: Inexact[Array, " size"], leaves: list, treedef: Any) -> PyTree:
    """The tree with the parts of a vector, in the shapes and dtypes of `leaves`."""
    parts = iter(lax.split(flat, [x.size for x in leaves if x is not None]))

    def part_like(x):
        part = _as(next(parts), x.dtype).reshape(x.shape)
        return in_explicit_shards(x, part)

    return treedef.unflatten(None if x is None else part_like(x) for x in leaves)


def _as(x, dtype):
    if x.dtype == dtype:
        return x
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
    return (x.real if is_real else x).astype(dtype)
