"""ACProp: AdaBelief that divides a gradient by moments of earlier gradients only."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import (
    abs_sq,
    as_float,
    bias_correction,
    safe_increment,
    safe_sqrt,
)
from ..moments import AbstractMomentsState, counted, init_moments
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay
from .radam import rectification


class ScaleByACPropState(AbstractMomentsState):
    """The mean of the gradients so far, and their deviation from it.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment about the mean, real also for complex parameters.
    """


@equation(elementwise=True)
def acprop(
    g, mu, nu, *, b1, b2, eps, eps_root, mu_correction, nu_correction, rectifier
):
    is_known = (rectifier > 0) & (nu > 0)
    denominator = jnp.where(is_known, safe_sqrt(nu / nu_correction) + eps, 1)
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g - mu) + b2 * nu + eps_root
    u = jnp.where(is_known, rectifier * g, mu / mu_correction) / denominator
    return u, mu, nu


# Differs from Optax in:
# 1. The second moment is about the new mean, as in the paper and in the authors' code.
#    (g - mu_t is b1 (g - mu_{t-1}), so steps are longer by a factor of 1 / b1.)
# 2. `rectify`, which is also on by default in the authors' code. Without it, if the
#    first gradient happens to be zero, the second gradient is not divided.
#
# Differs from the authors' code in:
# 1. The bias of the last second moment is computed for t - 1 steps, also when rectifying.
class ScaleByACProp(AbstractLeafwise):
    r"""Divides the gradient by the standard deviation of the earlier gradients.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t - \mu_t|^2 + \bar\varepsilon &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= r_t\, g_t \big/ \big(\sqrt{\hat\nu_{t-1}} + \varepsilon\big)
    \end{aligned}$$

    with $r_t$ from [`eqopt.ScaleByRAdam`][]. While $r_t$ is undefined (by default in
    the first five steps), and where $\nu_{t-1} = 0$ (which can happen in float16),
    $u_t = \hat\mu_t$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-16.
    - `eps_root`: $\bar\varepsilon \ge 0$, added to the second moment in each step, so
        that it adds up to $\bar\varepsilon / (1 - \beta_2)$. Defaults to 1e-16.
    - `rectify`: whether to use $r_t$. Otherwise, $r_t = 1$ for $t > 1$ and $u_1 = g_1$,
        as in the paper. In that case, steps are huge if the first gradients are tiny,
        unless `eps` is large. Defaults to `True`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhuang2021momentum,
            author = {Zhuang, Juntang and Ding, Yifan and Tang, Tommy and
                      Dvornek, Nicha and Tatikonda, Sekhar C. and Duncan, James},
            title = {Momentum Centering and Asynchronous Update for Adaptive Gradient
                     Methods},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2021},
        }
        ```
    """

    _stores_in_turn = True

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-16
    eps_root: ZeroOrMore = 1e-16
    rectify: bool = True
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByACPropState:
        return init_moments(self, ScaleByACPropState, params)

    def leafwise(
        self, state: ScaleByACPropState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        b2 = as_float(self.b2)
        return counted(
            self,
            acprop,
            state,
            count=count,
            # In the first step, there is no bias to correct, and no division.
            nu_correction=bias_correction(self.b2, jnp.maximum(state.count, 1)),
            rectifier=rectification(b2, count, 5.0) if self.rectify else 1.0,
        )


class ACProp(AbstractRecipe):
    r"""ACProp, asynchronous centering: numerator and denominator are independent.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t - \mu_t|^2 +
              \bar\varepsilon &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= r_t\, g_t \big/ \big(\sqrt{\hat\nu_{t-1}} + \varepsilon\big)
        \end{aligned}$$

        where $r_t$ is the factor of [`eqopt.RAdam`][]:

        $$\begin{aligned}
          r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}
            {(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}} &
          \rho_t &= \rho_\infty - 2 t \beta_2^t / (1 - \beta_2^t) \\
          & & \rho_\infty &= 2 / (1 - \beta_2) - 1
        \end{aligned}$$

        While $\rho_t < 5$ (by default in the first five steps), and where
        $\nu_{t-1} = 0$ (which can happen in float16), $u_t = \hat\mu_t$.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByACProp`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-16), $\bar\varepsilon$ is
        `eps_root` (1e-16), $\lambda$ is `weight_decay` (0.0).

    The weight decay is decoupled. The first steps are as long as the gradients, as in
    [`eqopt.RAdam`][].

    !!! example

        ```python
        opt = eqopt.ACProp(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-16.
    - `eps_root`: $\bar\varepsilon \ge 0$, added to the second moment in each step, so
        that it adds up to $\bar\varepsilon / (1 - \beta_2)$. Defaults to 1e-16.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `rectify`: whether to use $r_t$. Otherwise, $r_t = 1$ for $t > 1$ and $u_1 = g_1$,
        as in the paper. In that case, steps are huge if the first gradients are tiny,
        unless `eps` is large. Defaults to `True`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** like AdaBelief, if Adam's coupling of a gradient with its own
    scale causes problems, as in reinforcement learning and GANs. As with RAdam, the
    first steps are long. Unlike the other variants of Adam, it needs a copy of the
    second moment during the step.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhuang2021momentum,
            author = {Zhuang, Juntang and Ding, Yifan and Tang, Tommy and
                      Dvornek, Nicha and Tatikonda, Sekhar C. and Duncan, James},
            title = {Momentum Centering and Asynchronous Update for Adaptive Gradient
                     Methods},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2021},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-16
    eps_root: ZeroOrMore = 1e-16
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    rectify: bool = True
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByACProp, AddDecayedWeights, ScaleByLearningRate
