"""The diagonal of the Hessian, estimated with random signs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, UInt32

from .._arguments.extra import required_params
from .._core import AbstractTransformation, check_real, check_shapes, rounded_like
from .._trees.keys import key_data, next_key
from .._trees.leaves import restrict
from .._trees.states import check_state
from .._types import Key, Params, State, Updates
from ..second_order._curvature import hutchinson


class HutchinsonDiagHessianState(eqx.Module):
    """`key`: the bits of the random key for the next step."""

    key: UInt32[Array, "*key"]


class HutchinsonDiagHessian(AbstractTransformation):
    r"""Replaces the updates by an estimate of the diagonal of the Hessian.

    $$u = r \odot H r, \qquad r_i = \pm 1 \text{ at random}.$$

    The estimate is correct on average, and exact if the Hessian $H$ is diagonal. It
    costs about as much as two more gradients.

    The extra argument `value_fn` is the loss as a function of the model, on the current
    batch. It is differentiated with respect to the inexact arrays of `params` that have
    an update; all other leaves of the model stay unchanged. For a complex parameter
    $x + iy$, the estimate is the mean of the estimates for $x$ and for $y$, as a
    complex number.

    !!! example

        ```python
        state = opt.init(model)
        estimate, state = opt.update(
            grads, state, model, value_fn=lambda model: loss_fn(model, batch)
        )
        ```

    **Arguments:**

    - `key`: a seed or a key of `jax.random`, for the signs. Defaults to 0.

    **Raises:**

    In `update`, a `ValueError` if `params` or `value_fn` is missing, or if an update has
    another shape than its parameter. A `TypeError` if an update is complex, but its
    parameter is real.

    ??? cite "Reference"

        ```bibtex
        @article{bekas2007estimator,
            author = {Bekas, Costas and Kokiopoulou, Effrosyni and Saad, Yousef},
            title = {An Estimator for the Diagonal of a Matrix},
            journal = {Applied Numerical Mathematics},
            volume = {57},
            year = {2007},
        }
        ```
    """

    key: Key = 0

    def init(self, params: Params) -> HutchinsonDiagHessianState:
        return HutchinsonDiagHessianState(key_data(self.key))

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value_fn: Callable[[Params], Any],
        **extra: Any,
    ) -> tuple[Updates, State]:
        check_state(self, state)
        required_params(params)
        check_shapes(updates, params, "params")
        check_real(updates, params, "params")
        chosen = restrict(params, updates)
        now, later = next_key(state.key, self.key)
        slope = jax.grad(lambda arrays: value_fn(eqx.combine(arrays, params)))
        product = lambda r: jax.jvp(slope, (chosen,), (r,))[1]
        estimate = hutchinson(now, product, chosen)
        return rounded_like(estimate, updates), HutchinsonDiagHessianState(later)
