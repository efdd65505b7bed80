"""Momentum, averages of updates, and updates that are applied several at once."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from .._core import AbstractLeafwise, Leafwise, equation
from .._types import Count, Hyperparameter, Params, Unit, Updates, ZeroOrMore
from ..numerics._numerics import as_float, bias_correction, safe_increment
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

    def init(self, params: Params) -> ApplyEveryState:
        return ApplyEveryState(jnp.zeros((), jnp.int32), wide_zeros_like(params))

    def leafwise(
        self, state: ApplyEveryState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = state.count + 1
        is_last = count >= jnp.asarray(self.k, jnp.int32)
        state = ApplyEveryState(jnp.where(is_last, 0, count), state.grad_acc)
        return Leafwise(collect, state, {"is_last": is_last})


class EMAState(eqx.Module):
    """The average so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `ema`: the average, not debiased, a tree like the parameters.
    """

    count: Int[Array, ""]
    ema: Updates


@equation(elementwise=True)
def average(g, ema, *, decay, correction):
    ema = (1 - decay) * g + decay * ema
    return ema / correction, ema


class EMA(AbstractLeafwise):
    r"""The exponential moving average of all updates so far.

    $$m_t = (1 - \beta)\, g_t + \beta m_{t-1}, \qquad
      u_t = m_t / (1 - \beta^t) \quad\text{or, not debiased,}\quad u_t = m_t.$$

    ([`eqopt.Trace`][] is a decaying *sum*.)

    **Arguments:**

    - `decay`: $\beta \in [0, 1)$.
    - `debias`: whether to correct for the start of the average at zero. Defaults to
        `True`.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.

    **Raises:**

    A `ValueError` if `decay` is out of its range.
    """

    decay: Unit
    debias: bool = True
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> EMAState:
        ema = wide_zeros_like(params, self.accumulator_dtype)
        return EMAState(jnp.zeros((), jnp.int32), ema)

    def leafwise(
        self, state: EMAState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        correction = bias_correction(self.decay, count) if self.debias else 1.0
        state = EMAState(count, state.ema)
        return Leafwise(average, state, {"correction": correction})


class GrokfastState(eqx.Module):
    """The average so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `ema`: the average, which starts at the first update, a tree like the parameters.
    """

    count: Int[Array, ""]
    ema: Updates


@equation(elementwise=True)
def amplify_slow(g, ema, *, lamb, new):
    # Written as a difference, so that the average of equal numbers is exactly that
    # number.
    ema = ema + new * (g - ema)
    return g + lamb * ema, ema


class Grokfast(AbstractLeafwise):
    r"""Adds a multiple of the average of the updates so far to each update.

    $$e_t = \alpha e_{t-1} + (1 - \alpha)\, g_t, \qquad e_1 = g_1, \qquad
      u_t = g_t + \lambda e_t$$

    This amplifies the slow part of the updates by $1 + \lambda$ and hardly changes the
    fast part. Put it before an optimizer:

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.Grokfast(), eqopt.AdamW(1e-3, weight_decay=1e-2))
        ```

    For models that generalize long after they fit the training data ("grokking"), the
    authors report generalization many times sooner. They tune $\alpha$, $\lambda$ and
    the weight decay for each task.

    **Arguments:**

    - `alpha`: $\alpha \in [0, 1)$, the decay of the average. Defaults to 0.98.
    - `lamb`: $\lambda \ge 0$, how much of the average is added. Defaults to 2.0.
    - `accumulator_dtype`: the dtype in which $e$ is stored. Defaults to the dtype of
        each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{lee2024grokfast,
            author = {Lee, Jaerin and Kang, Bong Gyun and Kim, Kihoon and
                      Lee, Kyoung Mu},
            title = {Grokfast: Accelerated Grokking by Amplifying Slow Gradients},
            journal = {arXiv:2405.20233},
            year = {2024},
        }
        ```
    """

    alpha: Unit = 0.98
    lamb: ZeroOrMore = 2.0
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> GrokfastState:
        ema = wide_zeros_like(params, self.accumulator_dtype)
        return GrokfastState(jnp.zeros((), jnp.int32), ema)

    def leafwise(
        self, state: GrokfastState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        new = jnp.where(state.count == 0, 1.0, 1 - as_float(self.alpha))
        state = GrokfastState(safe_increment(state.count), state.ema)
        return Leafwise(amplify_slow, state, {"new": new})
