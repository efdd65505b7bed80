"""Momentum."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._core import AbstractLeafwise, Leafwise, equation
from .._types import Hyperparameter, Params, Updates
from ..tree._like import wide_zeros_like


class TraceState(eqx.Module):
    """`trace`: the decaying sum of the updates so far, a tree like the parameters."""

    trace: Updates


@equation(elementwise=True)
def accumulate(g, trace, *, decay, nesterov):
    trace = g + decay * trace
    return (g + decay * trace if nesterov else trace), trace


class Trace(AbstractLeafwise):
    r"""Momentum: the decaying sum of all updates so far.

    $$m_t = g_t + \beta m_{t-1}, \qquad
      u_t = m_t \quad\text{or, with Nesterov,}\quad u_t = g_t + \beta m_t.$$

    (An exponential moving *average* would weight $g_t$ by $1 - \beta$.)

    **Arguments:**

    - `decay`: $\beta$, a number or a 0-d array.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.
    """

    decay: Hyperparameter
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> TraceState:
        return TraceState(trace=wide_zeros_like(params, self.accumulator_dtype))

    def leafwise(
        self, state: TraceState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(accumulate, state)
