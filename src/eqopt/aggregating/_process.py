"""Transformations before and after an aggregator, and the values that it passes on."""

from typing import Any

from .._combinators.chain import Chain, checked_states
from .._combinators.collecting import run_collected
from .._core import AbstractComposite, AbstractTransformation, Call
from .._transforms.scale import Identity
from .._trees.control import filter_cond
from .._trees.leaves import restrict
from .._trees.stored import load, store_like
from .._types import Hyperparameter, IntegerLike, Model, Params, State
from ._aggregator import AbstractAggregator, is_ready, rounded
from ._average import Axes, PerElementMeanAndSumSqDiffGrads
from ._tracking import TrackPerElementMeanAndVarianceWithEMA


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
        last = lambda: call._replace(
            updates=restrict(collected(), call.updates), extra=extra
        )
        result, after = _if_ready(
            middle,
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
        return checked_states(self, self._parts, state)

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


def _if_ready(state, act, stay):
    ready = is_ready(state)
    return act() if ready is True else filter_cond(ready, act, stay)


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
