"""Presents all parameters as one vector."""

import functools
from collections.abc import Callable, Mapping, Sequence
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
)
from .._errors import InputError
from .._trees.keys import keys_of_part
from .._trees.leaves import (
    ANOTHER_MODEL,
    align,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    parameters,
    restrict,
)
from .._trees.routes import Report
from .._trees.sharding import in_explicit_shards, unsharded
from .._trees.states import check_state
from .._trees.stored import full_params, hides_params
from .._types import Model, Params, PyTree, State, Updates
from ..numerics._numerics import at_least_float32, common_dtype


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
        return self._with_vector(params, change, keeps_dtypes=False)

    def _with_vector(
        self,
        params: Params,
        change: Callable[[Array], Array],
        keeps_dtypes: bool = True,
    ) -> Params:
        """`params` with another vector."""
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        if len(leaves) != len(self.shapes):
            raise InputError(
                "Flatten",
                f"`params` has {len(leaves)} leaves, but the parameters "
                f"given to `init` had {len(self.shapes)}. Pass the state and the "
                "parameters of the same model.",
            )
        leaves = [
            None if shape is None else x
            for x, shape in zip(leaves, self.shapes, strict=True)
        ]
        _check_shapes("params", params, leaves, self.shapes)
        old = _given(leaves)
        flat = _joined(old)
        new = change(flat)
        if not keeps_dtypes and new.dtype != flat.dtype:
            old = [x.astype(new.dtype) for x in old]
        return eqx.combine(_unflatten(new, old, leaves, treedef), params)


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
        state = keys_of_part(self.inner.init(_joined(_given(leaves))), params)
        return FlattenState(state, shapes)

    def handle(self, call: Call, state: FlattenState) -> tuple[Any, FlattenState]:
        updates, params, extra, is_step, _ = call
        leaves, treedef = self._checked(updates, state)
        given, old, flat_params = _given(leaves), [], None
        extra = _with_vectors(extra, updates)
        if is_step or params is not None:
            old = _matching(updates, leaves, treedef, params)
            flat_params = _joined(old)
            extra = _with_functions(extra, updates, old, params)
        only_adds = isinstance(self.inner, AbstractOptimizer | Chain | NamedChain)
        adds = is_step and only_adds and not hides_params(state)
        if adds:
            # Adding the updates to a vector would copy all parameters, even if they are
            # not used, and save nothing. Wrappers are excluded because their steps do
            # more than add, and so does `StoreParams` in a chain.
            is_step = False
            given = [at_least_float32(g) for g in given]  # only the sum is rounded
        of_vector = Call(_joined(given), flat_params, extra, is_step)
        flat, inner_state = of_vector.run(self.inner, state.inner_state)
        new = _unflatten(flat, old if is_step else given, leaves, treedef)
        if adds:
            new = add_updates(params, new)
        result = eqx.combine(new, params) if is_step else new
        return result, FlattenState(inner_state, state.shapes)

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        of_vector = functools.partial(self.inner.eval_params, state.inner_state)
        return state._with_vector(params, of_vector)

    def _checked(self, updates: Updates, state: FlattenState) -> tuple[list, Any]:
        """The leaves of the updates, checked against the leaves given to `init`."""
        leaves, treedef = flatten_updates(updates)
        if len(leaves) != len(state.shapes):
            raise InputError(
                "Flatten",
                f"`updates` has {len(leaves)} leaves, but the parameters "
                f"given to `init` had {len(state.shapes)}. Call `init` with the model "
                "whose gradients you pass.",
            )
        for i, (g, shape) in enumerate(zip(leaves, state.shapes, strict=True)):
            if (g is None) is not (shape is None):
                which = ("a", "no") if g is not None else ("no", "a")
                raise ValueError(_UNMATCHED.format(keystr(updates, i), *which))
        _check_shapes("updates", updates, leaves, state.shapes)
        return leaves, treedef


_UNMATCHED = (
    "Flatten: `updates` has {1} value at `{0}`, but the parameters given to `init` "
    "had {2} value. All parameters become one vector, so each needs an update. To "
    "train only some of them, call `init(eqx.filter(model, is_trained))`, or put "
    "`Flatten` inside `eqopt.SelectiveTransform(opt, freeze_mask=...)`."
)


def _check_shapes(name: str, tree: PyTree, leaves: list, shapes: Sequence) -> None:
    """Raises a `ValueError` for a leaf that had another shape in `init`.

    If the total size is the same, values would meet the state of other elements.
    """
    for i, (x, shape) in enumerate(zip(leaves, shapes, strict=True)):
        if x is not None and tuple(x.shape) != shape:
            raise InputError(
                "Flatten",
                f"`{name}` has shape {[*x.shape]} at `{keystr(tree, i)}`, but "
                f"the parameter given to `init` had shape {[*shape]}. {ANOTHER_MODEL}",
            )


def _given(leaves: list) -> list:
    return [leaf for leaf in leaves if leaf is not None]


def _matching(updates: Updates, leaves: list, treedef: Any, params: Params) -> list:
    """The parameters, aligned with the updates."""
    column = align(treedef, params, "params", updates)
    for i, (g, p) in enumerate(zip(leaves, column, strict=True)):
        if g is not None and not is_parameter(p):
            raise InputError(
                "Flatten",
                f"`updates` has an array at `{keystr(updates, i)}`, but "
                f"`params` has {p!r}. Pass the model whose gradients these are.",
            )
    return [p for g, p in zip(leaves, column, strict=True) if g is not None]


def _with_vectors(extra: Mapping[str, Any], updates: Updates) -> Mapping[str, Any]:
    """`extra` with vectors for trees of gradients."""
    for name in ("grad", "previous_grad", "sum_sq_diff_grads"):
        if extra.get(name) is not None:
            extra = {**extra, name: _vector_of(extra[name], updates, name)}
    return extra


def _with_functions(
    extra: Mapping[str, Any], updates: Updates, old: list, params: Params
) -> Mapping[str, Any]:
    """`extra` with functions of one vector."""
    leaves, treedef = flatten_updates(updates)

    def to_model(flat):
        return eqx.combine(_unflatten(flat, old, leaves, treedef), params)

    to_vector = lambda grads: _vector_of(grads, updates, "grad_fn(params)")
    return with_functions(extra, to_model, to_vector)


def _vector_of(grads: PyTree, updates: Updates, name: str) -> Array:
    return _joined(jtu.tree_leaves(restrict(grads, updates, name)))


def _unflatten(
    flat: Inexact[Array, " size"], like: list, leaves: list, treedef: Any
) -> PyTree:
    """The tree with arrays shaped like `like` at each leaf that is not `None`."""
    parts = iter(_parted(flat, like))
    return treedef.unflatten(None if leaf is None else next(parts) for leaf in leaves)


def _joined(leaves: list) -> Inexact[Array, " size"]:
    if not leaves:
        return jnp.zeros(0)
    dtype = common_dtype(*(leaf.dtype for leaf in leaves))
    return jnp.concatenate([_as(unsharded(x).reshape(-1), dtype) for x in leaves])


def _parted(flat: Inexact[Array, " size"], like: list) -> list[Inexact[Array, "..."]]:
    parts = lax.split(flat, [leaf.size for leaf in like])
    return [
        in_explicit_shards(x, _as(part, x.dtype).reshape(x.shape))
        for part, x in zip(parts, like, strict=True)
    ]


def _as(x, dtype):
    if x.dtype == dtype:
        return x
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
    return (x.real if is_real else x).astype(dtype)
