"""Exponential moving averages of the parameters, for evaluation."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.extra import required_params
from ..._core import AbstractTransformation, AbstractWrapper, Call
from ..._transforms.normalize import ratio
from ..._transforms.scale import at
from ..._trees.leaves import parameters
from ..._trees.precision import compute_dtype
from ..._types import Interval, Model, Params, ScalarOrSchedule, State
from ...numerics._numerics import safe_increment
from ...tree._like import wide_copy
from .beside import averaged_or, move_average


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

    inner: AbstractTransformation
    decay: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.999
    debias: bool = True
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ParamEMAState:
        dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
        return ParamEMAState(
            count=jnp.zeros((), jnp.int32),
            weight_sum=jnp.array(0 if self.debias else 1, dtype),
            inner_state=self.inner.init(params),
            average=wide_copy(params, self.accumulator_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        params = super().eval_params(state, params)
        return averaged_or(params, state, state.weight_sum)

    def handle(self, call: Call, state: ParamEMAState) -> tuple[Any, ParamEMAState]:
        required_params("ParamEMA", call.params)
        result, inner_state = call.run(self.inner, state.inner_state)
        # Not `1 - jnp.asarray(decay)`: a Python number still has all its digits here.
        new: Any = 1 - at(self, "decay", state.count)
        new = jnp.asarray(new).astype(state.weight_sum.dtype)
        weight_sum = state.weight_sum + new * (1 - state.weight_sum)
        weight = ratio(new, weight_sum)  # 0 if the decay has always been 1
        average = move_average(call, result, state.average, weight)
        count = safe_increment(state.count)
        return result, ParamEMAState(count, weight_sum, inner_state, average)
