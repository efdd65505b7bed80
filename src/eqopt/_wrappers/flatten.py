"""All parameters as one vector."""

from typing import Any, no_type_check

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact, PyTree

from .._combinators.chain import Chain, NamedChain
from .._explicit import sharded_like, unsharded
from .._leaves import align, flatten_updates, is_parameter, keystr, parameters, restrict
from .._random import keys_of_part
from .._transformation import AbstractOptimizer, AbstractTransformation
from .._types import Params, State, Updates
from ..numerics import common_dtype


class Flatten(AbstractTransformation):
    """Lets the inner transformation see all parameters as one vector.

    For a model of very many small leaves, that is less to trace and to launch, at the
    price of copying the leaves together and apart: during a step there is one more copy
    of the gradients, and one of the parameters if they are looked at, as they are for
    weight decay and by wrappers. For transformations that look at a leaf as a whole
    (trust ratios, factored moments) it is another algorithm: the whole model is their
    one leaf.

    Leaves of different dtypes meet in the dtype to which they promote: with float32 and
    bfloat16 parameters the vector and the inner state are float32, with float32 and
    complex64 ones they are complex64. Updates come back in the dtypes they had.

    **Arguments:**

    - `inner`: the transformation.

    **Raises:**

    A `ValueError` that names the key path, in `update`, if `updates` and `params` do not
    hold arrays at the same places.
    """

    inner: AbstractTransformation

    def init(self, params: Params) -> State:
        state = self.inner.init(_joined(jtu.tree_leaves(parameters(params))))
        return keys_of_part(state, params)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, State]:
        leaves, treedef = flatten_updates(updates)
        given = [leaf for leaf in leaves if leaf is not None]
        flat_params = None
        if params is not None:
            old = _matching(updates, leaves, treedef, params)
            flat_params, extra = _joined(old), _of_vector(extra, updates, old, params)
        flat, state = self.inner.update(_joined(given), state, flat_params, **extra)
        return _unflatten(flat, given, leaves, treedef), state

    def step(
        self, grads: Updates, state: State, params: Params, **extra: Any
    ) -> tuple[Params, State]:
        if isinstance(self.inner, AbstractOptimizer | Chain | NamedChain):
            # To add the updates to a vector takes a copy of all parameters, looked at or
            # not, and saves nothing. The steps of wrappers do more than to add.
            return super().step(grads, state, params, **extra)
        leaves, treedef = flatten_updates(grads)
        given = [leaf for leaf in leaves if leaf is not None]
        old = _matching(grads, leaves, treedef, params)
        extra = _of_vector(extra, grads, old, params)
        flat, state = self.inner.step(_joined(given), state, _joined(old), **extra)
        return eqx.combine(_unflatten(flat, old, leaves, treedef), params), state

    def eval_params(self, state: State, params: Params) -> Params:
        leaves, treedef = jtu.tree_flatten(parameters(params))
        flat = self.inner.eval_params(state, _joined(leaves))
        return eqx.combine(treedef.unflatten(_parted(flat, leaves)), params)


def _matching(updates: Updates, leaves: list, treedef: Any, params: Params) -> list:
    """The parameters of which all, and no others, have an update."""
    column = align(treedef, params, "params", updates)
    for i, (g, p) in enumerate(zip(leaves, column, strict=True)):
        if (g is None) == is_parameter(p):
            has, lacks = ("params", "updates") if g is None else ("updates", "params")
            raise ValueError(
                f"Flatten: `{has}` has an array at `{keystr(updates, i)}`, but `{lacks}` "
                "has none. All parameters become one vector, so each needs an update: "
                "to train some of them only, put `Flatten` inside `eqopt.Masked`."
            )
    return [p for g, p in zip(leaves, column, strict=True) if g is not None]


def _of_vector(
    extra: dict[str, Any], updates: Updates, old: list, params: Params
) -> dict[str, Any]:
    """The extra arguments for a transformation that sees one vector."""
    value_fn, grad = extra.get("value_fn"), extra.get("grad")
    if value_fn is not None:
        leaves, treedef = flatten_updates(updates)

        def of_vector(flat):
            return value_fn(eqx.combine(_unflatten(flat, old, leaves, treedef), params))

        extra = {**extra, "value_fn": of_vector}
    if grad is not None:
        part = restrict(grad, updates, "grad")
        extra = {**extra, "grad": _joined(jtu.tree_leaves(part))}
    return extra


def _unflatten(
    flat: Inexact[Array, " size"], like: list, leaves: list, treedef: Any
) -> PyTree:
    """The tree whose arrays, shaped as `like`, stand where `leaves` has no `None`."""
    parts = iter(_parted(flat, like))
    return treedef.unflatten(None if leaf is None else next(parts) for leaf in leaves)


def _joined(leaves: list[Inexact[Array, "..."]]) -> Inexact[Array, " size"]:
    if not leaves:
        return jnp.zeros(0)
    dtype = common_dtype(*(leaf.dtype for leaf in leaves))
    return jnp.concatenate([_as(unsharded(x).reshape(-1), dtype) for x in leaves])


def _parted(
    flat: Inexact[Array, " size"], like: list[Inexact[Array, "..."]]
) -> list[Inexact[Array, "..."]]:
    # Or XLA tries to make each part from what the vector is made of, which takes it 5 %
    # longer to compile.
    flat = lax.optimization_barrier(flat)
    parts = lax.split(flat, [leaf.size for leaf in like])
    return [
        sharded_like(x, _as(part, x.dtype).reshape(x.shape))
        for part, x in zip(parts, like, strict=True)
    ]


@no_type_check  # called once per leaf
def _as(x, dtype):
    if x.dtype == dtype:
        return x
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
    return (x.real if is_real else x).astype(dtype)
