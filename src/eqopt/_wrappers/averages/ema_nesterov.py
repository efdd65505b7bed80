"""Gradients at parameters that are extrapolated along their recent movement."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._core import AbstractTransformation, equation, leafwise, rounded_like, widened
from ..._transforms.scale import at
from ..._trees.leaves import parameters
from ..._trees.precision import compute_dtype
from ..._trees.states import check_state
from ..._types import (
    CountOrZero,
    Interval,
    Model,
    Params,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
)
from ...numerics._numerics import as_float, safe_increment
from ...tree._like import wide_zeros_like
from .copies import replace_params


class EMANesterovState(eqx.Module):
    """The recent movement of the parameters.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `beta`: the current factor of the extrapolation, a 0-d array.
    - `inner_state`: the inner state.
    - `velocity`: the average of the last steps, a tree like the parameters, in at least
        float32.
    """

    count: Int[Array, ""]
    beta: Float[Array, ""]
    inner_state: State
    velocity: Params


@equation(elementwise=True)
def ema_nesterov(g, velocity, *, beta, next_beta, decay):
    velocity = decay * velocity + (1 - decay) * (beta * velocity + g)
    return g + next_beta * velocity, velocity


@equation(elementwise=True)
def behind(p, velocity, *, beta):
    return p - beta * velocity


class EMANesterov(AbstractTransformation):
    r"""Extrapolates the parameters along the average of the last steps.

    $$\begin{aligned}
      y_t &= x_t + \beta_t\, v_t & v_0 &= 0 \\
      x_{t+1} &= y_t + u_t \\
      v_{t+1} &= \gamma\, v_t + (1 - \gamma)\, (x_{t+1} - x_t)
    \end{aligned}$$

    where $u_t$ is the update of the inner optimizer. The parameters are $y$: compute
    the gradients there. Evaluate with $x$, that is with
    `opt.eval_params(state, params)`. In the long run, a constant $u$ moves the
    parameters by $u / (1 - \beta)$ in each step, so the best learning rate is probably
    smaller. Turn the extrapolation off before the end of training, by `stop` or by a
    schedule.

    !!! example

        ```python
        opt = eqopt.EMANesterov(eqopt.Muon(0.01), 0.3, start=300, stop=1950)
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `beta`: $\beta \in [0, 1)$, a number, a 0-d array, or a schedule: a function of the
        number of steps taken so far. Defaults to 0.3.
    - `decay`: $\gamma \in [0, 1)$, the decay of the average. Defaults to 0.99.
    - `start`: the first step with extrapolation, an integer: $\beta_t = 0$ for smaller
        $t$. Defaults to 0.
    - `stop`: the first step after it, an integer: $\beta_t = 0$ from this $t$ on. With
        `None`, the extrapolation never stops.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        The code of the record of 19 June 2026 in the optimization benchmark of
        `KellerJordan/modded-nanogpt`.
    """

    _loads = "nothing"
    _moves_params = True

    inner: AbstractTransformation
    beta: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.3
    decay: Unit = 0.99
    start: CountOrZero = 0
    stop: CountOrZero | None = None

    def init(self, params: Params) -> EMANesterovState:
        dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
        return EMANesterovState(
            count=jnp.zeros((), jnp.int32),
            beta=jnp.zeros((), dtype),
            inner_state=self.inner.init(params),
            velocity=wide_zeros_like(params),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the parameters $x$, which are not extrapolated.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost wrapper counts.
        """
        check_state(self, state)
        return replace_params(state, params, behind, "velocity", beta=state.beta)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, EMANesterovState]:
        check_state(self, state)
        new, inner_state = self.inner.update(
            widened(updates), state.inner_state, params, **extra
        )
        count = safe_increment(state.count)
        next_beta = self._beta(count).astype(state.beta.dtype)
        new, velocity = leafwise(
            ema_nesterov,
            new,
            state.velocity,
            beta=state.beta,
            next_beta=next_beta,
            decay=self.decay,
        )
        new_state = EMANesterovState(count, next_beta, inner_state, velocity)
        return rounded_like(new, updates), new_state

    def _beta(self, count: Int[Array, ""]) -> Array:
        beta = as_float(at(self, "beta", count))
        is_on = count >= jnp.asarray(self.start, jnp.int32)
        if self.stop is not None:
            is_on &= count < jnp.asarray(self.stop, jnp.int32)
        return jnp.where(is_on, beta, 0)
