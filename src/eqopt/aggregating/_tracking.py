"""Averages over time of the mean and the variance of per-element gradients."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_interval
from .._core import AbstractLeafwise, Leafwise, equation
from .._errors import InputError
from .._transforms.scale import recorded
from .._types import (
    IntegerLike,
    Nonnegative,
    Params,
    PyTree,
    State,
    Unit,
    Updates,
)
from ..numerics._numerics import bias_correction, safe_increment
from ..tree import get
from ..tree._like import real_full_like, wide_zeros_like


class PerElementMeanAndVarianceEMAState(eqx.Module):
    """The averages so far, not debiased.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `ema_decay`: the current decay, a 0-d float32 array.
    - `mean_grads_ema`: the average of the means, a tree like the parameters in at least
        float32.
    - `variance_grads_ema`: the average of the variances; real also for complex
        parameters.
    """

    count: Int[Array, ""]
    ema_decay: Float[Array, ""]
    mean_grads_ema: Updates
    variance_grads_ema: Nonnegative


@equation(elementwise=True)
def track(g, sum_sq_diff_grads, mean_grads_ema, variance_grads_ema, *, decay, degrees):
    variance = sum_sq_diff_grads / degrees
    mean_grads_ema = (1 - decay) * g + decay * mean_grads_ema
    variance_grads_ema = (1 - decay) * variance + decay * variance_grads_ema
    return g, mean_grads_ema, variance_grads_ema


class TrackPerElementMeanAndVarianceWithEMA(AbstractLeafwise):
    r"""Tracks averages over time of the mean and the variance of per-element gradients.

    $$m_t = (1 - \beta)\, \bar g_t + \beta m_{t-1}, \qquad
      v_t = (1 - \beta) \frac{M_t}{n_t - 1} + \beta v_{t-1}.$$

    The updates, $\bar g_t$, stay unchanged. $M_t$ and $n_t$ are the extra arguments
    `sum_sq_diff_grads` and `sample_size`, which
    [`eqopt.aggregating.PerElementMeanAndSumSqDiffGrads`][] provides.
    [`eqopt.aggregating.add_mean_variance_to_opt`][] combines the two, and
    [`eqopt.aggregating.get_unbiased_mean_and_variance_ema`][] reads the averages.

    A NaN stays in the averages. If gradients may contain NaNs, wrap this and the
    optimizer in [`eqopt.ApplyIfFinite`][].

    **Arguments:**

    - `ema_decay`: $\beta \in [0, 1)$. Defaults to 0.9.

    **Raises:**

    A `ValueError` if `ema_decay` is out of its range; in `update`, if an extra argument
    is missing, or if `sample_size` is an integer smaller than 2.
    """

    ema_decay: Unit = 0.9

    def init(self, params: Params) -> PerElementMeanAndVarianceEMAState:
        mean = wide_zeros_like(params)
        return PerElementMeanAndVarianceEMAState(
            count=jnp.zeros((), jnp.int32),
            ema_decay=recorded(self.ema_decay),
            mean_grads_ema=mean,
            variance_grads_ema=real_full_like(mean, 0),
        )

    def leafwise(
        self,
        state: PerElementMeanAndVarianceEMAState,
        params: Params | None = None,
        *,
        sum_sq_diff_grads: PyTree,
        sample_size: IntegerLike,
        **extra: Any,
    ) -> Leafwise:
        if isinstance(sample_size, int):
            fix = "Use larger batches or `accumulation_steps`."
            owner = type(self).__name__
            check_interval(owner, "sample_size", sample_size, 2, advice=fix)
        # If there turns out to be a single one at run time, the variance is zero.
        degrees = jnp.maximum(jnp.asarray(sample_size, jnp.float32) - 1, 1)
        state = dataclasses.replace(
            state,
            count=safe_increment(state.count),
            ema_decay=recorded(self.ema_decay, state.ema_decay),
        )
        return Leafwise(
            track,
            state,
            {"decay": self.ema_decay, "degrees": degrees},
            reads={"sum_sq_diff_grads": sum_sq_diff_grads},
        )


def get_unbiased_mean_and_variance_ema(state: State) -> tuple[Updates, Updates]:
    r"""Returns the debiased averages of mean and variance in a state.

    $$m_t / (1 - \beta^t), \qquad v_t / (1 - \beta^t).$$

    **Arguments:**

    - `state`: any state that contains the state of an
        [`eqopt.aggregating.TrackPerElementMeanAndVarianceWithEMA`][].

    **Returns:**

    Both averages, trees like the parameters in at least float32. They are zero before the
    first step.

    **Raises:**

    A `ValueError` if there is no such state, and a `KeyError` if there are several.
    """
    name = PerElementMeanAndVarianceEMAState.__name__
    found = get(state, name, None)
    if found is None:
        raise InputError(
            "get_unbiased_mean_and_variance_ema",
            f"`state` has no {name}. Pass the state of an optimizer from "
            "`eqopt.aggregating.add_mean_variance_to_opt`.",
        )
    correction = bias_correction(found.ema_decay, found.count)
    correction = jnp.where(found.count > 0, correction, 1)
    debiased = lambda tree: jax.tree.map(lambda x: x / correction.astype(x.dtype), tree)
    return debiased(found.mean_grads_ema), debiased(found.variance_grads_ema)
