"""MoMo: momentum, and Adam, with a step size from the loss."""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.fields import static_choice
from ..._core import equation
from ..._trees.precision import or_tiny
from ..._types import (
    Hyperparameter,
    Interval,
    Mask,
    Nonnegative,
    Params,
    Recorded,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import (
    abs_sq,
    as_float,
    bias_correction,
    safe_increment,
    safe_sqrt,
)
from ...tree._like import real_full_like, wide_zeros_like
from .momo_model import AbstractMoMo, Momentum, Products, initial_scalars


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


@equation(elementwise=True)
def momo(g, exp_avg, *, b1):
    exp_avg = b1 * exp_avg + (1 - b1) * g
    return exp_avg, exp_avg


momo_products = Products(momo)


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

    learning_rate: ScalarOrSchedule = 1.0
    beta: Unit = 0.9
    lower_bound: Hyperparameter = 0.0
    weight_decay: Annotated[ScalarOrSchedule, Interval(0)] = 0.0
    adapt_lower_bound: bool = False
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> MoMoState:
        exp_avg = wide_zeros_like(params, self.mu_dtype)
        return MoMoState(exp_avg=exp_avg, **initial_scalars(params, self.lower_bound))

    def _momentum(self, state: MoMoState) -> Momentum:
        b1 = jnp.where(state.count == 0, 0.0, as_float(self.beta))
        averages = {"exp_avg": state.exp_avg}
        return Momentum(momo, momo_products, averages, {"b1": b1}, rho=1)


@equation(elementwise=True)
def momo_adam(g, exp_avg, exp_avg_sq, *, b1, b2, eps, correction):
    exp_avg = b1 * exp_avg + (1 - b1) * g
    exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * abs_sq(g)
    root = safe_sqrt(exp_avg_sq / correction)
    return exp_avg / (root + or_tiny(eps)), exp_avg, exp_avg_sq


momo_adam_products = Products(momo_adam)


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
            **initial_scalars(params, self.lower_bound),
        )

    def _momentum(self, state: MoMoAdamState) -> Momentum:
        count = safe_increment(state.count)
        correction = bias_correction(self.b2, count)
        return Momentum(
            momo_adam,
            momo_adam_products,
            {"exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq},
            {"b1": self.b1, "b2": self.b2, "eps": self.eps, "correction": correction},
            rho=bias_correction(self.b1, count),
        )
