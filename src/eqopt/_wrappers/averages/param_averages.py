"""Averages of the parameters, for evaluation."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._core import AbstractTransformation, AbstractWrapper, Call, equation, leafwise
from ..._transforms.normalize import ratio
from ..._transforms.scale import at
from ..._trees.control import filter_cond
from ..._trees.leaves import parameters, restrict
from ..._trees.precision import compute_dtype
from ..._types import Count, Interval, Model, Params, Scalar, ScalarOrSchedule, State
from ...numerics._numerics import safe_increment
from ...tree._like import scalar, wide_copy
from .copies import replace_params


@equation(elementwise=True)
def follow(p, average, *, weight):
    # The first value becomes the average itself, without the rounding of a difference.
    moved = average + weight * (p - average)
    return p, jnp.where(weight == 1, p, moved)


@equation(elementwise=True)
def follow_updated(g, average, p, *, weight):
    return g, follow(p + g, average, weight=weight)[1]


@equation(elementwise=True)
def choose(p, average, *, weight_sum):
    # The average has no weight before its first value.
    return jnp.where(weight_sum == 0, p, average)


def move_average(call: Call, result: Any, average: Params, weight: Scalar) -> Params:
    """Moves `average` towards the parameters after a call with this result.

    Where the call has no update, the average stays unchanged.
    """
    if call.is_step:
        here = restrict(result, call.updates)
        return leafwise(follow, here, average, weight=weight)[1]
    reads = {"p": call.params}
    return leafwise(follow_updated, result, average, reads=reads, weight=weight)[1]


class ParamEMAState(eqx.Module):
    r"""The average so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `weight_sum`: the sum of the weights of all parameters in the average, $s$, a 0-d
        array.
    - `inner_state`: the inner state.
    - `average`: the average, already debiased, a tree like the parameters.
    """

    count: Int[Array, ""]
    weight_sum: Float[Array, ""]
    inner_state: State
    average: Params


class ParamEMA(AbstractWrapper):
    r"""Keeps an exponential moving average of the parameters for evaluation.

    $$\begin{aligned}
      s_t &= \beta_t s_{t-1} + (1 - \beta_t), \\
      \bar\theta_t &= \bar\theta_{t-1} +
        \frac{1 - \beta_t}{s_t} (\theta_t - \bar\theta_{t-1})
    \end{aligned}$$

    where $\theta_t$ are the parameters after step $t$. With debiasing, $s_0 = 0$, so
    $s_t = 1 - \prod_{i \le t} \beta_i$, and the average covers only
    $\theta_1, …, \theta_t$. Otherwise, $s_0 = 1$, and it starts at the parameters given
    to `init`.

    The average does not affect training. `opt.eval_params(state, params)` returns it.
    Before the first step, it returns the parameters themselves, or the evaluation
    parameters of `inner`. An average that `inner` keeps is only used until then.

    For averages of several decays, put one inside another. On a GPU or TPU, a compiled
    step updates all of them while it writes the parameters, and reads and writes only
    the averages in addition. `eval_params` returns the outermost one. For the next one,
    call the method of `inner` with its state:

    !!! example

        ```python
        opt = eqopt.ParamEMA(eqopt.ParamEMA(eqopt.AdamW(1e-3), 0.99), 0.9999)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        slow = opt.eval_params(state, model)
        fast = opt.inner.eval_params(state.inner_state, model)
        ```

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain. `step` averages the parameters that it returns. Parameters in half precision
    are rounded then; `StoreParams(ParamEMA(AdamW(1e-3)), storage)` averages them before.

    !!! warning

        Every call is a step, even if `inner` leaves the parameters unchanged. So put
        wrappers that skip or accumulate outside: `MultiSteps(ParamEMA(AdamW(1e-3)), 8)`
        averages over the steps. `ParamEMA(MultiSteps(AdamW(1e-3), 8))` averages over
        the mini-steps, and needs the eighth root of `decay` to cover as many steps.

    **Arguments:**

    - `inner`: the optimizer.
    - `decay`: $\beta \in [0, 1)$, a number, a 0-d array, or a schedule: a function of
        the number of steps taken so far (0 in the first step). Defaults to 0.999.
    - `debias`: whether to exclude the initial parameters from the average. Defaults to
        `True`.
    - `accumulator_dtype`: the dtype in which the average is stored. Defaults to the
        dtype of each parameter, at least float32. In bfloat16, which has 8 binary
        digits, an average with `decay=0.999` would stand still.

    **Raises:**

    A `ValueError` if `decay` is out of its range, and in `update` if `params` is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{polyak1992acceleration,
            author = {Polyak, Boris T. and Juditsky, Anatoli B.},
            title = {Acceleration of Stochastic Approximation by Averaging},
            journal = {SIAM Journal on Control and Optimization},
            volume = {30},
            number = {4},
            pages = {838--855},
            year = {1992},
        }
        ```
    """

    _needs_params = True

    inner: AbstractTransformation
    decay: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.999
    debias: bool = True
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ParamEMAState:
        return ParamEMAState(
            count=jnp.zeros((), jnp.int32),
            weight_sum=scalar(0 if self.debias else 1, params),
            inner_state=self.inner.init(params),
            average=wide_copy(params, self.accumulator_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        params = super().eval_params(state, params)
        weight_sum = state.weight_sum
        return replace_params(state, params, choose, "average", weight_sum=weight_sum)

    def handle(self, call: Call, state: ParamEMAState) -> tuple[Any, State]:
        result, inner_state = call.run(self.inner, state.inner_state)
        # Not `1 - jnp.asarray(decay)`: a Python number still has all its digits here.
        new: Any = 1 - at(self, "decay", state.count)
        new = jnp.asarray(new).astype(state.weight_sum.dtype)
        weight_sum = state.weight_sum + new * (1 - state.weight_sum)
        weight = ratio(new, weight_sum)  # 0 if the decay has always been 1
        average = move_average(call, result, state.average, weight)
        count = safe_increment(state.count)
        return result, ParamEMAState(count, weight_sum, inner_state, average)


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

    _needs_params = True

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
        weight_sum = state.n_averaged
        return replace_params(state, params, choose, "average", weight_sum=weight_sum)

    def handle(self, call: Call, state: SWAState) -> tuple[Any, State]:
        result, inner_state = call.run(self.inner, state.inner_state)
        count = safe_increment(state.count)
        start, period = (jnp.asarray(n, jnp.int32) for n in (self.start, self.period))
        late = count - start
        due = (late >= 0) & (late % period == 0)
        more = safe_increment(state.n_averaged)
        weight = 1 / more.astype(compute_dtype(parameters(call.params)))
        # A branch, so that the other steps neither read nor write the average.
        average = filter_cond(
            due,
            lambda: move_average(call, result, state.average, weight),
            lambda: state.average,
        )
        n_averaged = jnp.where(due, more, state.n_averaged)
        return result, SWAState(count, n_averaged, inner_state, average)
