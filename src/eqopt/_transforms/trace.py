"""Sums of updates: momentum, and updates that are applied several at once."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from .._core import AbstractLeafwise, Leafwise, equation
from .._types import Count, Hyperparameter, Updates
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

    def init(self, params) -> TraceState:
        return TraceState(trace=wide_zeros_like(params, self.accumulator_dtype))

    def leafwise(self, state: TraceState, params=None, **extra):
        return Leafwise(accumulate, state)


class ApplyEveryState(eqx.Module):
    """The updates that have not been applied yet.

    **Attributes:**

    - `count`: the number of these updates, a 0-d int32 array.
    - `grad_acc`: their sum, a tree like the parameters, in at least float32.
    """

    count: Int[Array, ""]
    grad_acc: Updates


@equation(elementwise=True)
def collect(g, grad_acc, *, is_last):
    total = grad_acc + g
    return jnp.where(is_last, total, 0), jnp.where(is_last, 0, total)


class ApplyEvery(AbstractLeafwise):
    r"""Adds up updates, and applies their sum in every $k$-th step.

    In all other steps the updates are zero:

    $$u_t = \begin{cases}
        g_{t-k+1} + \dots + g_t & t = k, 2k, 3k, … \\
        0 & \text{otherwise.}
      \end{cases}$$

    Everything else in the chain runs in every step. To accumulate the gradients of
    several mini-batches for one step of a whole optimizer, use [`eqopt.MultiSteps`][].

    An update that is `None` adds nothing to the sum. If it is the $k$-th one, the sum
    waits for the next one.

    **Arguments:**

    - `k`: an integer of at least 1. Defaults to 1.

    **Raises:**

    A `ValueError` if `k` is smaller than 1 or not an integer.
    """

    k: Count = 1

    def init(self, params) -> ApplyEveryState:
        return ApplyEveryState(jnp.zeros((), jnp.int32), wide_zeros_like(params))

    def leafwise(self, state: ApplyEveryState, params=None, **extra):
        count = state.count + 1
        is_last = count >= jnp.asarray(self.k, jnp.int32)
        return Leafwise(
            collect,
            ApplyEveryState(jnp.where(is_last, 0, count), state.grad_acc),
            {"is_last": is_last},
        )
