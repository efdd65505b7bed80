"""Gradients at other points than the one to evaluate: Schedule-Free, GPA, EMANesterov."""

from typing import Annotated, Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    as_update,
    equation,
    leafwise,
    result_of,
)
from ..._transforms.normalize import ratio
from ..._transforms.scale import at, recorded
from ..._trees.leaves import is_leaf
from ..._trees.states import check_state
from ..._types import (
    CountOrZero,
    Interval,
    Model,
    Params,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    UpToOne,
    ZeroOrMore,
)
from ...numerics._numerics import as_float, safe_increment
from ...tree._like import scalar, wide_copy, wide_zeros_like
from .copies import replace_params


class ScheduleFreeState(eqx.Module):
    """The inner state, and the numbers that determine the average.

    **Attributes:**

    - `b1`: the share of the average in the parameters, a 0-d array.
    - `weight_sum`: the sum of the weights of all averaged values so far, a 0-d array.
    - `step_count`: the steps taken so far, a 0-d int32 array.
    - `max_lr`: the largest learning rate so far, a 0-d array.
    - `inner_state`: the inner state.
    - `z`: the iterate of the inner optimizer, a tree like the parameters.
    """

    b1: Float[Array, ""]
    weight_sum: Float[Array, ""]
    step_count: Int[Array, ""]
    max_lr: Float[Array, ""]
    inner_state: State
    z: Params


@equation(elementwise=True)
def schedule_free(g, z, p, *, b1, fall, c):
    # The averages before and after the step, solved for the parameters, so that neither
    # is stored.
    share = c + (1 - c) * fall
    return share * (z - p) + (1 - b1 + b1 * c) * g, z + g


@equation(elementwise=True)
def recover_average(p, z, *, b1):
    return z + (p - z) / b1


def fall_of(share: Any, last: Array) -> Scalar:
    """By which part the share of the average in the parameters falls in this step.

    The parameters before the step were made with the share `last`. The result is exactly
    0 if the share is constant, and if it was 0, when the average does not matter.
    """
    return ratio(last - jnp.asarray(share, last.dtype), last)


def with_average(state: Any, params: Params, b1: Any) -> Params:
    """The model with the average, $x$, whose share in the parameters is `b1`."""
    return replace_params(state, params, recover_average, "z", b1=b1)


class ScheduleFree(AbstractWrapper):
    r"""Averages the parameters instead of decaying the learning rate.

    $$\begin{aligned}
      z_t &= z_{t-1} + u_t & z_0 &= x_0 = y_0 \\
      x_t &= (1 - c_t)\, x_{t-1} + c_t\, z_t &
        c_t &= \frac{w_t}{\sum_{i \le t} w_i}, \quad
        w_t = \big(\max_{i \le t} \eta_i\big)^{\rho} \\
      y_t &= \beta_1 x_t + (1 - \beta_1)\, z_t
    \end{aligned}$$

    where $u_t$ is the update of the inner optimizer, and the parameters are $y$: compute
    the gradients $g_t$ at $y_{t-1}$. Evaluate with $x$, that is with
    `opt.eval_params(state, params)`.

    Use an inner optimizer without momentum, because $\beta_1$ replaces it.

    !!! example

        ```python
        warm_up = eqopt.schedules.Linear(0.0, 1e-3, 100)
        opt = eqopt.ScheduleFree(eqopt.AdamW(warm_up, b1=0.0), warm_up)
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `learning_rate`: $\eta$, the learning rate of `inner`, as a number, a 0-d array or
        a schedule. It is used only for the weights.
    - `b1`: $\beta_1 \in (0, 1]$. Defaults to 0.9.
    - `weight_lr_power`: $\rho \ge 0$. Defaults to 2.0.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{defazio2024road,
            author = {Defazio, Aaron and Yang, Xingyu Alice and Mehta, Harsh and
                      Mishchenko, Konstantin and Khaled, Ahmed and Cutkosky, Ashok},
            title = {The Road Less Scheduled},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    # Differs from Optax in: the schedule is evaluated at the same count as in `inner`,
    # starting at 0. In Optax, it is one step ahead, so weights and steps do not match.

    _moves_params = True
    _needs_params = True
    _stores_in_turn = True

    inner: AbstractTransformation
    learning_rate: ScalarOrSchedule
    # If y did not contain x, x could not be recovered for evaluation.
    b1: UpToOne = 0.9
    weight_lr_power: ZeroOrMore = 2.0
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScheduleFreeState:
        return ScheduleFreeState(
            b1=scalar(self.b1, params),
            weight_sum=scalar(0, params),
            step_count=jnp.zeros((), jnp.int32),
            max_lr=scalar(0, params),
            inner_state=self.inner.init(params),
            z=wide_copy(params, self.state_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average, $x$.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return with_average(state, params, state.b1)

    def handle(self, call: Call, state: ScheduleFreeState) -> tuple[Any, State]:
        new, inner_state = as_update(call).run(self.inner, state.inner_state)
        dtype = state.max_lr.dtype
        eta = jnp.asarray(at(self, "learning_rate", state.step_count), dtype)
        max_lr = jnp.maximum(state.max_lr, eta)
        weight = max_lr ** jnp.asarray(self.weight_lr_power, dtype)
        weight_sum = state.weight_sum + weight
        c = ratio(weight, weight_sum)  # 0 while a warm-up from zero gives no weight
        new, z = leafwise(
            schedule_free,
            new,
            state.z,
            reads={"p": call.params},
            b1=self.b1,
            fall=fall_of(self.b1, state.b1),
            c=c,
        )
        new_state = ScheduleFreeState(
            b1=recorded(self.b1, state.b1),
            weight_sum=weight_sum,
            step_count=safe_increment(state.step_count),
            max_lr=max_lr,
            inner_state=inner_state,
            z=z,
        )
        return result_of(call, new), new_state


Place: TypeAlias = Literal["z", "y"]


class GPAState(eqx.Module):
    """The state and the iterate of the inner optimizer.

    **Attributes:**

    - `mu_y`: the share of the average in the parameters, a 0-d array.
    - `inner_state`: the inner state.
    - `z`: the iterate of the inner optimizer, a tree like the parameters.
    """

    mu_y: Float[Array, ""]
    inner_state: State
    z: Params


@equation(elementwise=True)
def gpa(g, z, p, *, mu_x, mu_y, fall):
    # Solved for the parameters, so that the average is not stored.
    share = (1 - mu_x) + mu_x * fall
    return share * (z - p) + (1 - mu_x * mu_y) * g, z + g


class GPA(AbstractWrapper):
    r"""Takes the gradients between the parameters and a running average of them.

    $$\begin{aligned}
      z_t &= z_{t-1} + u_t & z_0 &= x_0 = y_0 \\
      x_t &= \mu_x\, x_{t-1} + (1 - \mu_x)\, z_t \\
      y_t &= \mu_y\, x_t + (1 - \mu_y)\, z_t
    \end{aligned}$$

    where $u_t$ is the update of the inner optimizer. The parameters are $y$: compute
    the gradients there. Evaluate with $x$, that is with
    `opt.eval_params(state, params)`. The authors use it to replace DiLoCo with one
    worker: for $H$ inner steps there, use $\mu_x$ = 0.9 for $H$ = 1, 0.974 for 4,
    0.9869 for 8, 0.9934 for 16, 0.9967 for 32, 0.9984 for 64, and 0.9992 for 128.
    Unlike [`eqopt.ScheduleFree`][], it works with a schedule, and with momentum in
    `inner`.

    !!! example

        ```python
        opt = eqopt.GPA(eqopt.AdamW(1e-3, weight_decay=0.1))
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `mu_x`: $\mu_x \in [0, 1)$, the decay of the average. With 0, the result equals
        `inner`. Defaults to 0.9967.
    - `mu_y`: $\mu_y \in (0, 1]$, the share of the average in the parameters. Defaults
        to 0.7.
    - `sees`: the parameters that `inner` gets, mainly for weight decay: `"z"`, which
        the authors' code decays, too, or `"y"`. Defaults to `"z"`.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{defazio2025smoothing,
            author = {Defazio, Aaron and Mishchenko, Konstantin and Shi, Hao-Jun Michael
                      and others},
            title = {Smoothing {DiLoCo} with Primal Averaging for Faster Training of
                     {LLM}s},
            journal = {arXiv:2512.17131},
            year = {2025},
        }
        ```
    """

    _moves_params = True
    _needs_params = True
    _stores_in_turn = True

    inner: AbstractTransformation
    mu_x: Unit = 0.9967
    # If y did not contain x, x could not be recovered for evaluation.
    mu_y: UpToOne = 0.7
    sees: Place = eqx.field(static=True, default="z")
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> GPAState:
        return GPAState(
            mu_y=scalar(self.mu_y, params),
            inner_state=self.inner.init(params),
            z=wide_copy(params, self.state_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average, $x$.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return with_average(state, params, state.mu_y)

    def handle(self, call: Call, state: GPAState) -> tuple[Any, State]:
        update = as_update(call)
        if self.sees == "z":
            # A whole model, because `inner` may call the loss.
            seen = eqx.combine(state.z, call.params, is_leaf=is_leaf)
            update = update._replace(params=seen)
        new, inner_state = update.run(self.inner, state.inner_state)
        new, z = leafwise(
            gpa,
            new,
            state.z,
            reads={"p": call.params},
            mu_x=self.mu_x,
            mu_y=self.mu_y,
            fall=fall_of(self.mu_y, state.mu_y),
        )
        mu_y = recorded(self.mu_y, state.mu_y)
        return result_of(call, new), GPAState(mu_y, inner_state, z)


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


class EMANesterov(AbstractWrapper):
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

    _moves_params = True

    inner: AbstractTransformation
    beta: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.3
    decay: Unit = 0.99
    start: CountOrZero = 0
    stop: CountOrZero | None = None

    def init(self, params: Params) -> EMANesterovState:
        return EMANesterovState(
            count=jnp.zeros((), jnp.int32),
            beta=scalar(0, params),
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

    def handle(self, call: Call, state: EMANesterovState) -> tuple[Any, State]:
        new, inner_state = as_update(call).run(self.inner, state.inner_state)
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
        return result_of(call, new), new_state

    def _beta(self, count: Int[Array, ""]) -> Array:
        beta = as_float(at(self, "beta", count))
        is_on = count >= jnp.asarray(self.start, jnp.int32)
        if self.stop is not None:
            is_on &= count < jnp.asarray(self.stop, jnp.int32)
        return jnp.where(is_on, beta, 0)
