"""Yogi: Adam with a second moment that changes by at most the squared gradient."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, ScaleByLearningRate


class ScaleByYogiState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def yogi(g, mu, nu, *, b1, b2, eps, eps_root, mu_correction, nu_correction):
    mu = (1 - b1) * g + b1 * mu
    new = nu - (1 - b2) * jnp.sign(nu - abs_sq(g)) * abs_sq(g)
    nu = jnp.where(jnp.isinf(nu), nu, new)  # infinity minus infinity would be NaN
    denominator = root_plus(nu / nu_correction + eps_root, eps)
    return (mu / mu_correction) / denominator, mu, nu


# Differs from Optax in:
# 1. The first moment starts at zero, as in the paper. In Optax, it also starts at the
#    initial accumulator value, so parameters move even if gradients are zero.
class ScaleByYogi(AbstractLeafwise):
    r"""Divides the mean of the gradients by the root of a slowly moving second moment.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \nu_{t-1} - (1 - \beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\,
        |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} + \varepsilon\big)
    \end{aligned}$$

    In float32, the square of a gradient above 1.8e19 overflows: its coordinate then has
    an infinite $\nu$, and updates of zero.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$; the second moment changes by $(1 - \beta_2)\,|g_t|^2$.
        Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. The default is much larger than
        Adam's, as in the paper.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `initial_accumulator_value`: $\nu_0 \ge 0$. In the first step, the bias correction
        turns it into about $\nu_0 / (1 - \beta_2)$. Defaults to 1e-6.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zaheer2018adaptive,
            author = {Zaheer, Manzil and Reddi, Sashank J. and Sachan, Devendra and
                      Kale, Satyen and Kumar, Sanjiv},
            title = {Adaptive Methods for Nonconvex Optimization},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2018},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-3
    eps_root: ZeroOrMore = 0.0
    initial_accumulator_value: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByYogiState:
        start = self.initial_accumulator_value
        return init_moments(self, ScaleByYogiState, params, start)

    def leafwise(
        self, state: ScaleByYogiState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, yogi, state)


class Yogi(AbstractRecipe):
    r"""Yogi: Adam with a step size that grows back slowly.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \nu_{t-1} - (1 - \beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\,
            |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByYogi`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\beta_2$ is
        `b2` (0.999), $\varepsilon$ is `eps` (0.001), $\bar\varepsilon$ is `eps_root`
        (0.0), $\nu_0$ is `initial_accumulator_value` (1e-6).

    !!! example

        ```python
        opt = eqopt.Yogi(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$; the second moment changes by $(1 - \beta_2)\,|g_t|^2$.
        Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 0.001, which is much
        larger than the default of Adam, as in the paper.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `initial_accumulator_value`: $\nu_0 \ge 0$. In the first step, the bias correction
        turns it into about $\nu_0 / (1 - \beta_2)$. Defaults to 1e-6.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** if Adam's step size jumps up when gradients become small. Try a
    larger learning rate, such as 0.01.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zaheer2018adaptive,
            author = {Zaheer, Manzil and Reddi, Sashank J. and Sachan, Devendra and
                      Kale, Satyen and Kumar, Sanjiv},
            title = {Adaptive Methods for Nonconvex Optimization},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-3
    eps_root: ZeroOrMore = 0.0
    initial_accumulator_value: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByYogi, ScaleByLearningRate
