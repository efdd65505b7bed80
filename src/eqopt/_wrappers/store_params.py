"""Parameters in half precision, with the rounded-off bits in the state."""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._arguments.extra import required_params
from .._core import AbstractTransformation, AbstractWrapper, Call, check_wide, leafwise
from .._errors import InputError
from .._trees.leaves import (
    ANOTHER_MODEL,
    align,
    is_leaf,
    is_parameter,
    keystr,
    parameters,
    restrict,
)
from .._trees.states import check_state
from .._trees.stored import (
    AbstractHidden,
    joined,
    load,
    of_jax,
    standard_promotion,
    taken_apart,
)
from .._types import Exact, Model, Params, PyTree, State
from ..storage._base import (
    AbstractParamStorage,
    AbstractStateStorage,
    Slot,
    check_made_by,
    check_storage,
    made_by,
)
from .project import towards


class StoreParamsState(eqx.Module):
    """The hidden parts of the parameters.

    **Attributes:**

    - `hidden`: a tree like the parameters, with `None` at parameters that are not kept
        in two parts.
    - `inner_state`: the inner state.
    """

    _has_hidden = True

    hidden: Exact
    inner_state: State


class StoreParams(AbstractWrapper):
    """Keeps the parameters in two parts: one in the model, the rest in the state.

    The model is in half precision, and the forward pass uses it. In each step, the
    kernel of a leaf joins both parts, adds the update in float32, and splits the sum.
    So updates that are too small for the parameter's own dtype are not lost. There is
    never a full-precision copy of the whole model. `inner` sees parameters in full
    precision.

    !!! example

        ```python
        model = eqopt.tree.cast(model, jnp.bfloat16)
        opt = eqopt.StoreParams(eqopt.AdamW(1e-3), eqopt.storage.SplitMasterWeights())
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        full = opt.full_params(state, model)  # float32, to save or to evaluate
        ```

    Call `step`. `update` must return updates that lead from the visible part of the
    parameters to the new one. Half precision is too coarse for such updates, so
    `update` accepts only float32 gradients. Nothing may follow this in a chain, and
    wrappers that change the parameters too, such as [`eqopt.Lookahead`][],
    [`eqopt.GPA`][] and [`eqopt.Project`][], go inside: their `init` raises a
    `ValueError` if this is inside them.

    **Arguments:**

    - `inner`: the optimizer.
    - `storage`: how a parameter is stored; see `eqopt.storage`.

    **Raises:**

    A `TypeError` if `storage` is not a storage for parameters. In `init`, a `TypeError`
    that names the key path if a parameter cannot be stored in this way, and a
    `ValueError` if no parameter is. In `update`, a `TypeError` if the updates have half
    precision or another storage made the state, and a `ValueError` if `params` is `None`.
    """

    _keeps_gradients = True

    inner: AbstractTransformation
    # A storage for states gets its own error message.
    storage: AbstractParamStorage | AbstractStateStorage

    def __check_init__(self) -> None:
        check_storage("StoreParams", self.storage, AbstractParamStorage)

    def init(self, params: Params) -> StoreParamsState:
        hidden = self._hidden(params)
        return StoreParamsState(hidden, self.inner.init(load(joined(params, hidden))))

    def _hidden(self, params: Params) -> PyTree:
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        storage: Any = self.storage
        hidden = []
        for i, p in enumerate(leaves):
            try:
                with standard_promotion():
                    found = None if p is None else storage.hide(of_jax(p), Slot(i))
                kinds = AbstractHidden, type(None)
                hidden.append(made_by(storage, "hide", found, kinds))
            except TypeError as error:
                path = keystr(params, i)
                raise InputError("StoreParams", f"at `{path}`: {error}") from None
        found = dict.fromkeys(str(p.dtype) for p in leaves if p is not None)
        if found and not any(h is not None for h in hidden):
            raise InputError(
                "StoreParams",
                f"{type(self.storage).__name__} leaves parameters of dtype "
                f"{' and '.join(found)} unchanged. Cast the model: "
                "`eqopt.tree.cast(model, jnp.bfloat16)`.",
            )
        return treedef.unflatten(hidden)

    def eval_params(self, state: State, params: Model) -> Model:
        """The evaluation parameters of `inner`, in the model's dtypes.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            are computed in full precision and rounded at the end.
        """
        check_state(self, state)
        full = load(_joined(params, state.hidden))
        leaves, treedef = jtu.tree_flatten(full, is_leaf=is_leaf)
        evaluated = treedef.flatten_up_to(
            self.inner.eval_params(state.inner_state, full)
        )
        given = treedef.flatten_up_to(params)
        return treedef.unflatten(
            p if x is y else y.astype(p.dtype) if is_parameter(p) else y
            for p, x, y in zip(given, leaves, evaluated, strict=True)
        )

    def handle(
        self, call: Call, state: StoreParamsState
    ) -> tuple[Any, StoreParamsState]:
        if not call.is_step:
            check_wide(call.updates)
        params = required_params("StoreParams", call.params)
        is_hidden = lambda x: isinstance(x, AbstractHidden)
        leaves = jtu.tree_leaves_with_path(state.hidden, is_leaf=is_hidden)
        made = [pair for pair in leaves if is_hidden(pair[1])]
        storage: Any = self.storage
        check_made_by("StoreParams", storage, made, storage._may_have_hidden, "")
        own = call._replace(params=_joined(params, state.hidden), is_step=True)
        new, inner_state = own.run(self.inner, state.inner_state)
        new, hidden = taken_apart(new)
        if not call.is_step:
            reads = {"projected": restrict(new, call.updates), "p": params}
            new = leafwise(towards, call.updates, reads=reads)
        return new, StoreParamsState(hidden, inner_state)


def _joined(params: Params, hidden: PyTree) -> PyTree:
    """Both parts of the parameters; an error if they belong to different models."""
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    parts = align(treedef, hidden, "state.hidden", params, "params")
    for i, (p, h) in enumerate(zip(leaves, parts, strict=True)):
        if h is not None and not (is_parameter(p) and h.fits(of_jax(p))):
            raise InputError(
                "StoreParams",
                f"at `{keystr(params, i)}`, {eqx.tree_pformat(h)} in the state does not "
                f"belong to {eqx.tree_pformat(p)}. {ANOTHER_MODEL}",
            )
    return joined(params, hidden)
