"""Measures the global norm of the gradients once, for logs and for inner parts."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import AbstractTransformation, AbstractWrapper, Call, global_norm
from .._types import Params, State
from ..tree._like import scalar


class RecordGradNormState(eqx.Module):
    """The norm of the last gradients.

    **Attributes:**

    - `grad_norm`: the norm, a 0-d array of at least float32. Before the first step, it
        is zero.
    - `inner_state`: the inner state.
    """

    grad_norm: Float[Array, ""]
    inner_state: State


class RecordGradNorm(AbstractWrapper):
    r"""Measures the global norm of the gradients, once for everything inside.

    $$\text{grad\_norm}_t = \|g_t\|_2$$

    The norm is in the state, where [`eqopt.tree.metrics`][] and [`eqopt.tree.get`][]
    find it, also after a step that a wrapper inside skips. The inner transformation
    gets it as the extra argument `grad_norm`, so [`eqopt.SkipStep`][] and an
    [`eqopt.ClipByGlobalNorm`][] that comes first do not compute it again. The updates
    do not change.

    !!! example

        ```python
        opt = eqopt.RecordGradNorm(
            eqopt.SkipStep(
                eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3)),
                eqopt.SigmaRule(),
            )
        )
        model, state = opt.step(grads, opt.init(model), model)
        eqopt.tree.metrics(state)["grad_norm"]
        ```

    If you know the norm already, pass it: `step(grads, state, model, grad_norm=norm)`.
    Then nothing is reduced. Put this outside all other wrappers, but inside
    [`eqopt.DynamicLossScale`][]: outside, it would measure the gradients of the scaled
    loss.

    **Arguments:**

    - `inner`: the optimizer.

    **Raises:**

    In `update`, a `ValueError` if `grad_norm` is not one real number.
    """

    inner: AbstractTransformation

    def init(self, params: Params) -> RecordGradNormState:
        return RecordGradNormState(scalar(0, params), self.inner.init(params))

    def handle(self, call: Call, state: RecordGradNormState) -> tuple[Any, State]:
        length = global_norm(call.updates, call.extra)
        call = call._replace(extra={**call.extra, "grad_norm": length})
        result, inner_state = call.run(self.inner, state.inner_state)
        # A copy: the state must not share a buffer with a norm that the caller passed.
        recorded = jnp.array(length, state.grad_norm.dtype, copy=True)
        return result, RecordGradNormState(recorded, inner_state)
