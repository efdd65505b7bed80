"""Stochastic weight averaging."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.extra import required_params
from ..._core import AbstractTransformation, AbstractWrapper, Call
from ..._trees.control import filter_cond
from ..._trees.leaves import parameters
from ..._trees.precision import compute_dtype
from ..._types import Count, Model, Params, State
from ...numerics._numerics import safe_increment
from ...tree._like import wide_copy
from .beside import averaged_or, move_average


class SWAState(eqx.Module):
    """The average so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `n_averaged`: the number of values in the average, a 0-d int32 array.
    - `inner_state`: the inner state.
    - `average`: the average, a tree like the parameters. While `n_averaged` is zero, it
        holds the parameters given to `init`.
    """

    count: Int[Array, ""]
    n_averaged: Int[Array, ""]
    inner_state: State
    average: Params


class SWA(AbstractWrapper):
    r"""Averages the parameters of late steps with equal weights, for evaluation.

    $$\bar\theta = \frac{1}{n} \sum_{i=0}^{n-1} \theta_{s + ic}$$

    over the parameters $\theta_t$ after the steps $t = s, s + c, s + 2c, …$ so far.
    This is stochastic weight averaging. From step $s$ on, keep the learning rate high,
    or let it cycle with the period $c$.

    The average does not affect training. `opt.eval_params(state, params)` returns it.
    Before step $s$, it returns the parameters themselves, or the evaluation parameters
    of `inner`. A step that adds nothing to the average does not touch it.

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain.

    Every call is a step, even if `inner` leaves the parameters unchanged. So put
    wrappers that skip or accumulate outside: `MultiSteps(SWA(AdamW(1e-3), 1000), 8)`.

    The statistics of batch normalization belong to the parameters that they were
    computed with: compute them again for the average.

    **Arguments:**

    - `inner`: the optimizer.
    - `start`: $s \ge 1$, the first step after which to average, an integer.
    - `period`: $c \ge 1$, an integer. Defaults to 1.
    - `accumulator_dtype`: the dtype in which the average is stored. Defaults to the
        dtype of each parameter, at least float32. Half precision is too coarse for more
        than a few hundred values.

    **Raises:**

    A `ValueError` if `start` or `period` is smaller than 1, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{izmailov2018averaging,
            author = {Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and
                      Vetrov, Dmitry and Wilson, Andrew Gordon},
            title = {Averaging Weights Leads to Wider Optima and Better Generalization},
            booktitle = {Uncertainty in Artificial Intelligence},
            year = {2018},
        }
        ```
    """

    inner: AbstractTransformation
    start: Count
    period: Count = 1
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> SWAState:
        return SWAState(
            count=jnp.zeros((), jnp.int32),
            n_averaged=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
            average=wide_copy(params, self.accumulator_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        params = super().eval_params(state, params)
        return averaged_or(params, state, state.n_averaged)

    def handle(self, call: Call, state: SWAState) -> tuple[Any, SWAState]:
        params = required_params("SWA", call.params)
        result, inner_state = call.run(self.inner, state.inner_state)
        count = safe_increment(state.count)
        start, period = (jnp.asarray(n, jnp.int32) for n in (self.start, self.period))
        late = count - start
        due = (late >= 0) & (late % period == 0)
        more = safe_increment(state.n_averaged)
        weight = 1 / more.astype(compute_dtype(parameters(params)))
        # A branch, so that the other steps neither read nor write the average.
        average = filter_cond(
            due,
            lambda: move_average(call, result, state.average, weight),
            lambda: state.average,
        )
        n_averaged = jnp.where(due, more, state.n_averaged)
        return result, SWAState(count, n_averaged, inner_state, average)
