"""Transformations around an aggregator, and averages over time of what it passes on."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_interval
from .._combinators.chain import Chain, checked_states
from .._core import (
    AbstractComposite,
    AbstractLeafwise,
    AbstractTransformation,
    Call,
    Leafwise,
    equation,
)
from .._errors import InputError
from .._transforms.scale import Identity, recorded
from .._trees.control import filter_cond
from .._trees.leaves import restrict
from .._trees.stored import load, store_like
from .._types import (
    Hyperparameter,
    IntegerLike,
    Model,
    Nonnegative,
    Params,
    PyTree,
    State,
    Unit,
    Updates,
)
from .._wrappers.collecting import run_collected
from ..numerics._numerics import bias_correction, safe_increment
from ..tree import get
from ..tree._like import real_full_like, wide_zeros_like
from ._average import (
    AbstractAggregator,
    Axes,
    PerElementMeanAndSumSqDiffGrads,
    is_ready,
    rounded,
)


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
            check_interval("sample_size", sample_size, 2, advice=fix)
        # If there turns out to be a single one at run time, the variance is zero.
        degrees = jnp.maximum(jnp.asarray(sample_size, jnp.float32) - 1, 1)
        count = safe_increment(state.count)
        decay = recorded(self.ema_decay, state.ema_decay)
        state = dataclasses.replace(state, count=count, ema_decay=decay)
        shared = {"decay": self.ema_decay, "degrees": degrees}
        reads = {"sum_sq_diff_grads": sum_sq_diff_grads}
        return Leafwise(track, state, shared, reads=reads)


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
        fix = "Make the optimizer with `eqopt.aggregating.add_mean_variance_to_opt`."
        raise InputError(f"`state` has no {name}. {fix}")
    correction = bias_correction(found.ema_decay, found.count)
    correction = jnp.where(found.count > 0, correction, 1)
    debiased = lambda tree: jax.tree.map(lambda x: x / correction.astype(x.dtype), tree)
    return debiased(found.mean_grads_ema), debiased(found.variance_grads_ema)


class Process(AbstractComposite):
    """Transforms per-element updates, aggregates them, and transforms the result.

    It is like an [`eqopt.Chain`][] of the three, with two differences.

    - The other results of an [`eqopt.aggregating.AbstractAggregator`][] are passed to
        the postprocessor as extra arguments.
    - If the aggregator needs several calls, the postprocessor runs only in the last of
        them. In all other calls, updates are zero, and only the states of the other two
        change. With `step`, neither the parameters nor the state of the postprocessor
        are copied.

    Its state is the tuple of the three states.

    !!! example

        ```python
        clip = eqopt.ClipByGlobalNorm(1.0)
        opt = eqopt.aggregating.Process(
            eqopt.Stateless(
                lambda grads, params: jax.vmap(lambda g: clip.update(g, None)[0])(grads)
            ),
            eqopt.aggregating.AverageIncrementallyUpdates(0, accumulation_steps=4),
            eqopt.Adam(1e-3),
        )
        ```

    **Arguments:**

    - `preprocessor`: a transformation of per-element gradients. Its `init` gets the
        parameters, so its state cannot have the shapes of per-element gradients.
    - `aggregator`: an `AbstractAggregator`, or any other transformation that returns
        updates like the parameters.
    - `postprocessor`: the optimizer.

    **Raises:**

    A `TypeError` if an argument is not a transformation, and in `update` if the state
    does not consist of three states.
    """

    preprocessor: AbstractTransformation
    aggregator: AbstractTransformation
    postprocessor: AbstractTransformation

    def init(self, params: Params) -> tuple[State, ...]:
        return tuple(part.init(params) for part in self._parts)

    def handle(
        self, call: Call, state: tuple[State, ...]
    ) -> tuple[Any, tuple[State, ...]]:
        before, middle, after = self._states(state)
        aggregated, extra, before, middle = self._aggregate(call, before, middle)
        # Inside the branches, so that unused values are not rounded.
        collected = lambda: rounded(aggregated, call.updates)
        updates = lambda: restrict(collected(), call.updates)
        last = lambda: call._replace(updates=updates(), extra=extra)
        result, after = filter_cond(
            is_ready(middle),
            lambda: run_collected(last(), self.postprocessor, after, collected()),
            lambda: (last().nothing(), after),
        )
        return result, (before, middle, after)

    def eval_params(self, state: State, params: Model) -> Model:
        return self.postprocessor.eval_params(self._states(state)[2], params)

    @property
    def _parts(self):
        return self.preprocessor, self.aggregator, self.postprocessor

    def _states(self, state):
        return checked_states(self._parts, state)

    def _aggregate(self, call, before, middle):
        """Updates in at least the precision of `grads`, extra arguments, two states."""
        grads, params, extra, *_ = call
        updates, before = self.preprocessor.update(grads, before, params, **extra)
        arguments = updates, load(middle), load(params)
        if isinstance(self.aggregator, AbstractAggregator):
            aggregated, found, new = self.aggregator.aggregate(*arguments, **extra)
            extra = {**extra, **found}
        else:
            aggregated, new = self.aggregator.update(*arguments, **extra)
        return aggregated, extra, before, store_like(middle, new)


def add_mean_variance_to_opt(
    inner: AbstractTransformation,
    ema_decay: Hyperparameter = 0.9,
    per_elt_axis: Axes = 0,
    accumulation_steps: IntegerLike = 1,
) -> Process:
    """Makes an optimizer for per-element gradients that tracks their variance.

    It applies `inner` to their mean.

    !!! example

        ```python
        opt = eqopt.aggregating.add_mean_variance_to_opt(eqopt.Adam(1e-3))
        state = opt.init(model)
        per_example = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0))
        model, state = opt.step(per_example(model, batch), state, model)
        mean, variance = eqopt.aggregating.get_unbiased_mean_and_variance_ema(state)
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `ema_decay`: as in
        [`eqopt.aggregating.TrackPerElementMeanAndVarianceWithEMA`][].
    - `per_elt_axis`, `accumulation_steps`: as in
        [`eqopt.aggregating.PerElementMeanAndSumSqDiffGrads`][].

    **Returns:**

    An [`eqopt.aggregating.Process`][] of these two parts and `inner`.
    """
    return Process(
        preprocessor=Identity(),
        aggregator=PerElementMeanAndSumSqDiffGrads(per_elt_axis, accumulation_steps),
        postprocessor=Chain(TrackPerElementMeanAndVarianceWithEMA(ema_decay), inner),
    )
