"""MoMo: momentum, and Adam, with a step size from the loss."""

import abc
import dataclasses
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.extra import check_number, required_params
from ..._arguments.fields import static_choice
from ..._core import (
    AbstractTransformation,
    Equation,
    dot,
    equation,
    leafwise,
    rounded_like,
    sum_over_leaves,
    widened,
)
from ..._transforms.scale import recorded, scale
from ..._transforms.weight_decay import is_off
from ..._trees.states import check_state
from ..._types import (
    Hyperparameter,
    Interval,
    Leaf,
    Mask,
    Nonnegative,
    Params,
    RealScalarLike,
    Recorded,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, as_float, bias_correction, safe_increment
from ...tree._like import real_full_like, scalar, wide_zeros_like
from ..moments import root_plus, value_at
from ..recipe import Decays, which_decay
from .polyak import capped_ratio


class MoMoState(eqx.Module):
    """The averages for the model of the loss.

    **Attributes:**

    - `exp_avg`: the average of the gradients, a tree like the parameters.
    - `barf`: the average of the losses, a 0-d array.
    - `gamma`: the average of the products of gradients and parameters, a 0-d array.
    - `lb`: the lower bound of the loss, a 0-d array.
    - `learning_rate`: the step size of the last step, a 0-d array; zero before the
        first step.
    - `count`: the steps taken so far, a 0-d int32 array.
    """

    exp_avg: Updates
    barf: Float[Array, ""]
    gamma: Float[Array, ""]
    lb: Float[Array, ""]
    learning_rate: Recorded
    count: Int[Array, ""]


class MoMoAdamState(eqx.Module):
    """[`eqopt.MoMoState`][] with the average of the squared gradients.

    **Attributes:**

    - `exp_avg`, `barf`, `gamma`, `lb`, `learning_rate`, `count`: the same as in
        [`eqopt.MoMoState`][].
    - `exp_avg_sq`: the average of the squared moduli of the gradients, real also for
        complex parameters.
    """

    exp_avg: Updates
    exp_avg_sq: Nonnegative
    barf: Float[Array, ""]
    gamma: Float[Array, ""]
    lb: Float[Array, ""]
    learning_rate: Recorded
    count: Int[Array, ""]


class Products(Equation):
    """The products for the step size, from the equation of the direction.

    The first three are for leaves that decay, the others for leaves that do not.
    """

    def __init__(self, direction: Equation):
        self.name, self.shared = direction.name, direction.shared
        self.leaves = ("p", "decays", *direction.leaves)
        self._direction = direction

    def __call__(self, g: Leaf, p: Leaf, decays: Decays, *averages, **shared):
        d, exp_avg, *_ = self._direction(g, *averages, **shared)
        products = dot(g, p), dot(exp_avg, p), dot(exp_avg, d)
        zeros = tuple(map(jnp.zeros_like, products))
        return (*products, *zeros) if decays.is_on else (*zeros, *products)


@equation(elementwise=True)
def shrink(g, p, *, decay):
    # p + u = (p + g) / (1 + decay), without the cancellation.
    return (g - decay * p) / (1 + decay)


class AbstractMoMo(AbstractTransformation):
    """The step size, the lower bound and the decay, for any momentum.

    Differs from Optax in: with weight decay, both the step and the parameters are
    divided by 1 + decay, as in the paper and its code. (In Optax, only the parameters
    are.)
    """

    _loads = "nothing"
    _descends = True

    learning_rate: eqx.AbstractVar[ScalarOrSchedule]
    lower_bound: eqx.AbstractVar[Hyperparameter]
    weight_decay: eqx.AbstractVar[ScalarOrSchedule]
    adapt_lower_bound: eqx.AbstractVar[bool]
    mask: eqx.AbstractVar[Mask | None]

    # The equation of the direction and of the averages, and its products.
    _direction: ClassVar[Equation]
    _products: ClassVar[Products]

    @abc.abstractmethod
    def _momentum(self, state: Any) -> tuple[dict[str, Updates], dict[str, Any], Any]:
        """The old averages by name, values for the equation, and the sum of weights."""

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(params)
        check_number("value", value)
        now = lambda name: value_at(self, name, state.count, state.barf)
        decay = now("learning_rate") * now("weight_decay")
        averages, shared, rho = self._momentum(state)
        reads = {"p": params, "decays": which_decay(self.mask, params), **averages}
        sums = sum_over_leaves(self._products, updates, reads, shared, in_own_pass=True)
        sums = jnp.stack(sums).astype(decay.dtype)
        numbers = value, shared["b1"], rho, decay
        new = self._model(state, *numbers, sums[:3], sums[3:])
        old = averages.values()
        d, *moved = leafwise(self._direction, widened(updates), *old, **shared)
        u = leafwise(scale, d, step_size=-new.learning_rate)
        if not is_off(self.weight_decay):
            u = leafwise(shrink, u, reads={"p": params}, mask=self.mask, decay=decay)
        new = dataclasses.replace(new, **dict(zip(averages, moved, strict=True)))
        return rounded_like(u, updates), new

    def _model(self, state, value, b1, rho, decay, decaying, others) -> State:
        """The state with the model of the loss and the step size.

        `decaying` and `others` are the three products for leaves with and without decay.
        """
        # New arrays, because the state must not share a buffer with `self`.
        value, b1, rho, lower_bound = (
            jnp.array(x, decay.dtype) for x in (value, b1, rho, self.lower_bound)
        )
        alpha = value_at(self, "learning_rate", state.count, state.barf)
        g_p, d_p, d_d = decaying + others
        barf = b1 * state.barf + (1 - b1) * value
        gamma = b1 * state.gamma + (1 - b1) * g_p
        # The decay alone leads to a point where the model has the value `height`.
        _, d_shrunk, slope = decaying / (1 + decay) + others
        height = barf - gamma + d_shrunk
        if self.adapt_lower_bound:
            reset = jnp.maximum(height / (2 * rho), lower_bound)
            lb = jnp.where(height < rho * state.lb, reset, state.lb)
        else:
            lb = recorded(lower_bound, state.lb)
        gap = jnp.maximum(height - rho * lb, 0)
        tau = capped_ratio(gap, slope, alpha / rho)
        if self.adapt_lower_bound:
            # Zero times infinity would be NaN.
            descent = jnp.where(jnp.isinf(d_d), gap, tau * d_d)
            lb = jnp.maximum((barf - gamma + d_p - descent / 2) / rho, lower_bound)
        return dataclasses.replace(
            state,
            barf=barf,
            gamma=gamma,
            lb=lb,
            learning_rate=recorded(tau, state.learning_rate),
            count=safe_increment(state.count),
        )


def _initial_scalars(params: Params, lower_bound: Any) -> dict[str, Array]:
    """The fields of both states that are not averages over leaves."""
    return {
        "barf": scalar(0, params),
        "gamma": scalar(0, params),
        "lb": scalar(lower_bound, params),
        "learning_rate": scalar(0, params),
        "count": jnp.zeros((), jnp.int32),
    }


@equation(elementwise=True)
def momo(g, exp_avg, *, b1):
    exp_avg = b1 * exp_avg + (1 - b1) * g
    return exp_avg, exp_avg


class MoMo(AbstractMoMo):
    r"""Gradient descent with momentum, whose learning rate is computed from the loss.

    !!! abstract "One step"

        $$\begin{aligned}
          d_t &= \beta d_{t-1} + (1 - \beta)\, g_t \\
          \bar f_t &= \beta \bar f_{t-1} + (1 - \beta)\, f_t \\
          \gamma_t &= \beta \gamma_{t-1} + (1 - \beta)\, \langle g_t, p_{t-1} \rangle \\
          \tau_t &= \min\left(\eta_t,\ \frac{\big((1 + \eta_t \lambda)
              (\bar f_t - \gamma_t - f^*) + \langle d_t, p_{t-1} \rangle\big)_+}
              {\|d_t\|_2^2}\right) \\
          p_t &= \frac{p_{t-1} - \tau_t d_t}{1 + \eta_t \lambda}
        \end{aligned}$$

        where $f_t$ is the loss. The averages start at their first values: $d_0 = g_1$,
        $\bar f_0 = f_1$ and $\gamma_0 = \langle g_1, p_0 \rangle$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate` (1.0), $\beta$ is `beta` (0.9), $f^*$ is `lower_bound` (0.0),
        $\lambda$ is `weight_decay` (0.0).

    In float32, the square of a norm above 1.8e19 overflows: while $d$ is so large,
    steps are zero. `update` and `step` need the loss $f_t$ as the extra argument
    `value`, and `params`.

    `eqopt.tree.get(state, "learning_rate")` returns the last step size $\tau$.

    !!! example

        ```python
        opt = eqopt.MoMo()
        state = opt.init(model)
        value, grads = eqx.filter_value_and_grad(loss_fn)(model)
        model, state = opt.step(grads, state, model, value=value)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, the largest step size: a number, a 0-d array or a
        schedule. Defaults to 1.0.
    - `beta`: $\beta \in [0, 1)$, the decay of the averages. Defaults to 0.9.
    - `lower_bound`: $f^*$, a number or a 0-d array: a lower bound of the loss. Zero is
        suitable for most losses. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `adapt_lower_bound`: whether to estimate $f^*$ during training, starting with
        `lower_bound`. Use it if no good bound is known. Defaults to `False`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $d$ is stored. Defaults to `None`, which means the
        dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `value`
    or `params` is missing.

    **When to use it:** instead of gradient descent with momentum, if you have no time
    to tune the learning rate: above the best value, it matters little. The loss should
    come close to `lower_bound`. For language models, zero is far below the loss, so
    only the cap determines the steps.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{schaipp2024momo,
            author = {Schaipp, Fabian and Ohana, Ruben and Eickenberg, Michael and
                      Defazio, Aaron and Gower, Robert M.},
            title = {{MoMo}: Momentum Models for Adaptive Learning Rates},
            booktitle = {International Conference on Machine Learning},
            year = {2024},
        }
        ```
    """

    _direction = momo
    _products = Products(momo)

    learning_rate: ScalarOrSchedule = 1.0
    beta: Unit = 0.9
    lower_bound: Hyperparameter = 0.0
    weight_decay: Annotated[ScalarOrSchedule, Interval(0)] = 0.0
    adapt_lower_bound: bool = False
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> MoMoState:
        exp_avg = wide_zeros_like(params, self.mu_dtype)
        return MoMoState(exp_avg=exp_avg, **_initial_scalars(params, self.lower_bound))

    def _momentum(self, state: MoMoState):
        b1 = jnp.where(state.count == 0, 0.0, as_float(self.beta))
        return {"exp_avg": state.exp_avg}, {"b1": b1}, 1


@equation(elementwise=True)
def momo_adam(g, exp_avg, exp_avg_sq, *, b1, b2, eps, correction):
    exp_avg = b1 * exp_avg + (1 - b1) * g
    exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * abs_sq(g)
    return exp_avg / root_plus(exp_avg_sq / correction, eps), exp_avg, exp_avg_sq


class MoMoAdam(AbstractMoMo):
    r"""Adam whose learning rate is computed from the loss.

    !!! abstract "One step"

        $$\begin{aligned}
          d_t &= \beta_1 d_{t-1} + (1 - \beta_1)\, g_t &
          \bar f_t &= \beta_1 \bar f_{t-1} + (1 - \beta_1)\, f_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \gamma_t &= \beta_1 \gamma_{t-1} + (1 -
              \beta_1)\, \langle g_t, p_{t-1} \rangle \\
          D_t &= \sqrt{\nu_t / (1 - \beta_2^t)} + \varepsilon &
          \rho_t &= 1 - \beta_1^t
        \end{aligned}$$

        $$\begin{aligned}
          \tau_t &= \min\left(\frac{\eta_t}{\rho_t},\ \frac{\big((1 + \eta_t \lambda)
              (\bar f_t - \gamma_t - \rho_t f^*) + \langle d_t, p_{t-1} \rangle\big)_+}
              {\langle d_t, D_t^{-1} d_t \rangle}\right) \\
          p_t &= \frac{p_{t-1} - \tau_t D_t^{-1} d_t}{1 + \eta_t \lambda}
        \end{aligned}$$

        where $f_t$ is the loss, and $\bar f_0 = 0$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $d_0 = \nu_0 = \gamma_0 = 0$. $\eta$ is `learning_rate` (0.01), $\beta_1$ is
        `b1` (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $f^*$ is
        `lower_bound` (0.0), $\lambda$ is `weight_decay` (0.0).

    `update` and `step` need the loss as the extra argument `value`, and `params`.

    !!! example

        ```python
        opt = eqopt.MoMoAdam()
        state = opt.init(model)
        value, grads = eqx.filter_value_and_grad(loss_fn)(model)
        model, state = opt.step(grads, state, model, value=value)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, the largest step size: a number, a 0-d array or a
        schedule. Defaults to 0.01.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of $d$, $\bar f$ and $\gamma$. Defaults to
        0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of $\nu$. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `lower_bound`: $f^*$, a number or a 0-d array: a lower bound of the loss. Zero is
        suitable for most losses. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `adapt_lower_bound`: whether to estimate $f^*$ during training, starting with
        `lower_bound`. Use it if no good bound is known. Defaults to `False`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $d$ is stored. Defaults to `None`, which means the
        dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `value`
    or `params` is missing.

    **When to use it:** like MoMo, instead of Adam.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{schaipp2024momo,
            author = {Schaipp, Fabian and Ohana, Ruben and Eickenberg, Michael and
                      Defazio, Aaron and Gower, Robert M.},
            title = {{MoMo}: Momentum Models for Adaptive Learning Rates},
            booktitle = {International Conference on Machine Learning},
            year = {2024},
        }
        ```
    """

    _direction = momo_adam
    _products = Products(momo_adam)

    learning_rate: ScalarOrSchedule = 1e-2
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    lower_bound: Hyperparameter = 0.0
    weight_decay: Annotated[ScalarOrSchedule, Interval(0)] = 0.0
    adapt_lower_bound: bool = False
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> MoMoAdamState:
        return MoMoAdamState(
            exp_avg=wide_zeros_like(params, self.mu_dtype),
            exp_avg_sq=real_full_like(params, 0, self.nu_dtype),
            **_initial_scalars(params, self.lower_bound),
        )

    def _momentum(self, state: MoMoAdamState):
        count = safe_increment(state.count)
        averages = {"exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq}
        shared = {"b1": self.b1, "b2": self.b2, "eps": self.eps}
        shared["correction"] = bias_correction(self.b2, count)
        return averages, shared, bias_correction(self.b1, count)
