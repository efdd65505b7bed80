"""Exponential moving averages."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Inexact, Int

from .._checks import check_range
from .._equations import equation
from .._pipeline import Leafwise
from .._transformation import AbstractLeafwise
from .._types import Hyperparameter, Params, Updates
from ..numerics import bias_correction, safe_increment
from ..tree import zeros_like


class EMAState(eqx.Module):
    """The average so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `ema`: the average, not debiased, a tree like the parameters.
    """

    count: Int[Array, ""]
    ema: Updates


@equation
def average(
    g: Inexact[Array, "*leaf"],
    ema: Inexact[Array, "*leaf"],
    *,
    decay: Float[Array, ""],
    correction: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    ema = (1 - decay) * g + decay * ema
    return ema / correction, ema


class EMA(AbstractLeafwise):
    r"""The exponential moving average of all updates so far.

    $$m_t = (1 - \beta)\, g_t + \beta m_{t-1}, \qquad
      u_t = m_t / (1 - \beta^t) \quad\text{or, not debiased,}\quad u_t = m_t.$$

    ([`eqopt.Trace`][] is a decaying *sum*.)

    **Arguments:**

    - `decay`: $\beta \in [0, 1)$.
    - `debias`: whether to make up for the average's start at zero.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to that of each
        parameter.

    **Raises:**

    A `ValueError` if `decay` is out of its range.
    """

    decay: Hyperparameter
    debias: bool = True
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "decay", 0, 1)

    def init(self, params: Params) -> EMAState:
        ema = zeros_like(params, self.accumulator_dtype)
        return EMAState(jnp.zeros((), jnp.int32), ema)

    def leafwise(
        self, state: EMAState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        correction = bias_correction(self.decay, count) if self.debias else 1.0
        state = EMAState(count, state.ema)
        return Leafwise(average, state, {"correction": correction})
