"""Optax transformations as eqopt transformations."""

import contextlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..._combinators.masked import extra_of_part
from ..._core import AbstractTransformation, check_real, rounded_like
from ..._trees.leaves import ONE_MODEL, flatten_updates, parameters, restrict
from ..._trees.states import check_state
from ..._types import Params, PyTree, State, Updates


class FromOptaxState(eqx.Module):
    """`optax_state`: the state of the Optax transformation."""

    optax_state: State


class FromOptax(AbstractTransformation):
    """An Optax transformation, made by [`eqopt.interop.optax.from_optax`][]."""

    tx: optax.GradientTransformation = eqx.field(static=True)

    def init(self, params: Params) -> FromOptaxState:
        params = parameters(params)
        with _as_optax_needs_it():
            state = self.tx.init(params)
        return FromOptaxState(_unshared(state, params))

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, FromOptaxState]:
        check_state(self, state)
        flatten_updates(updates)
        part = None
        if params is not None:
            part = parameters(restrict(params, updates))
            check_real(self, updates, part, "params")
        extra = dict(extra_of_part(extra, part, params))
        tx = optax.with_extra_args_support(self.tx)
        try:
            with _as_optax_needs_it():
                new_updates, new = tx.update(updates, state.optax_state, part, **extra)
        except (TypeError, ValueError) as error:
            error.add_note(_NOTE)
            raise
        return rounded_like(new_updates, updates), FromOptaxState(new)


_NOTE = (
    f"This is an error of the Optax transformation in `from_optax`. {ONE_MODEL} Optax "
    "does not accept `None` for a parameter that was given to `init`: to train only some "
    "parameters, call `init(eqx.filter(model, is_trained))`, or put it inside "
    "`eqopt.SelectiveTransform(opt, freeze_mask=...)`."
)


def from_optax(tx: optax.GradientTransformation) -> AbstractTransformation:
    """An Optax transformation, for code that expects an eqopt transformation.

    !!! example

        ```python
        import optax
        from eqopt.interop.optax import from_optax

        opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), from_optax(optax.adam(1e-3)))
        state = opt.init(model)  # the whole model
        ```

    It accepts whole models: Optax sees only their floating and complex arrays. `tx`
    runs with implicit promotion of dtypes and shapes, which Optax relies on, even if
    JAX is configured to be strict. Extra arguments of `update` are passed to `tx`; a
    `value_fn` is called with the whole model.

    The rest depends on `tx`. Optax does not guarantee the following laws of eqopt: the
    state keeps its dtypes if gradients and parameters have different dtypes; nothing is
    NaN in float16; derivatives through steps are finite at zero gradients; the state is
    sharded like the parameters when `init` is compiled. Hyperparameters are not data,
    unless `tx` comes from `optax.inject_hyperparams`: then they are in the state, where
    `eqopt.tree.set(state, learning_rate=1e-4)` changes them.

    Two results are equal, and share compiled functions, if they come from the same
    object `tx`.

    **Arguments:**

    - `tx`: an `optax.GradientTransformation`, with or without extra arguments.

    **Returns:**

    An [`eqopt.AbstractTransformation`][]. Its state has one attribute, `optax_state`,
    which is the state of `tx`.
    """
    return FromOptax(tx)


@contextlib.contextmanager
def _as_optax_needs_it():
    """Implicit promotion, whatever the configuration of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _unshared(state: PyTree, params: PyTree) -> PyTree:
    """`state`, with copies of arrays that it shares with `params` or contains twice.

    Some transformations keep the initial parameters, which may be donated.
    """
    seen = {id(x) for x in jax.tree.leaves(params)}

    def own(x: Any) -> Any:
        if eqx.is_array(x) and id(x) in seen:
            return jnp.array(x, copy=True)
        seen.add(id(x))
        return x

    return jax.tree.map(own, state)
