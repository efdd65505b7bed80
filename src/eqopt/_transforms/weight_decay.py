"""Pulling parameters towards zero."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Int

from .._checks import check_scalar
from .._equations import equation
from .._fields import static_choice
from .._pipeline import Leafwise
from .._transformation import AbstractLeafwise
from .._types import Mask, Params, ScalarOrSchedule
from ..numerics import safe_increment
from .scale import at, same


class AddDecayedWeightsState(eqx.Module):
    """`count`: the steps taken so far, a 0-d int32 array; `None` without a schedule."""

    count: Int[Array, ""] | None


@equation
def decay_weights(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    weight_decay: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    return g + weight_decay * p


def is_off(weight_decay: ScalarOrSchedule) -> bool:
    """Whether it is the number zero: then nothing has to be read for it."""
    return isinstance(weight_decay, int | float) and bool(weight_decay == 0)


class AddDecayedWeights(AbstractLeafwise):
    r"""Adds a multiple of the parameters to the updates: $u = g + \lambda p$.

    After the preconditioner and before the learning rate it is decoupled weight decay,
    as in AdamW; before the preconditioner it is an $L^2$ penalty.

    **Arguments:**

    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the number
        zero, `params` are not needed.
    - `mask`: which parameters decay, as in [`eqopt.Masked`][]. Defaults to all.

    **Raises:**

    A `ValueError` in `update` if `params` is `None`.
    """

    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)

    def __check_init__(self):
        check_scalar(self, "weight_decay")

    def init(self, params: Params) -> AddDecayedWeightsState:
        is_scheduled = callable(self.weight_decay)
        return AddDecayedWeightsState(
            jnp.zeros((), jnp.int32) if is_scheduled else None
        )

    def leafwise(
        self,
        state: AddDecayedWeightsState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        weight_decay = self.weight_decay
        if is_off(weight_decay):
            return Leafwise(same, state)
        if callable(weight_decay) and state.count is not None:
            weight_decay = at(self, "weight_decay", state.count)
            state = AddDecayedWeightsState(safe_increment(state.count))
        shared = {"weight_decay": weight_decay}
        return Leafwise(decay_weights, state, shared, mask=self.mask)
