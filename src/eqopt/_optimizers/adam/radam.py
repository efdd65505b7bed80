"""RAdam: Adam that waits until its second moment is reliable."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import (
    Hyperparameter,
    Interval,
    Params,
    ScalarOrSchedule,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, as_float, safe_increment, safe_sqrt
from ..moments import AbstractMomentsState, counted, init_moments, root_plus, unbiased
from ..recipe import AbstractRecipe, ScaleByLearningRate


class ScaleByRAdamState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def radam(
    g, mu, nu, *, b1, b2, eps, eps_root, mu_correction, g_correction, nu_correction, r
):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    mu_hat = unbiased(mu, g, b1, mu_correction, g_correction)
    denominator = root_plus(nu / nu_correction + eps_root, eps)
    is_known = r > 0
    factor = jnp.where(is_known, r / jnp.where(is_known, denominator, 1), 1)
    return factor * mu_hat, mu, nu


@jax.jit
def rectification(b2: Hyperparameter, count: Int[Array, ""], threshold: Any) -> Array:
    r"""$r_t$ of [`eqopt.ScaleByRAdam`][], or 0 while $\rho_t$ is below the threshold."""
    with jax.numpy_dtype_promotion("standard"):
        rate = -jnp.log(jnp.asarray(b2))
        # The formula of the paper subtracts numbers of the size of 1 / (1 - b2), which
        # leaves three digits in float32. This formula uses differences of small
        # numbers.
        rho_inf = 1 / jnp.tanh(rate / 2)
        rho = 1 + _window(rate, count) - _window(rate, 1)
        is_known = rho >= threshold
        rho, rho_inf = (jnp.where(is_known, x, 6) for x in (rho, rho_inf))
        most = (rho_inf - 4) * (rho_inf - 2) / rho_inf
        squared = (rho - 4) * (rho - 2) / rho / most
        return jnp.where(is_known, safe_sqrt(squared), 0)


# Coefficients of coth z - 1/z for odd powers of z, enough for float64 up to z = 0.5.
_COTH = (
    1 / 3,
    -1 / 45,
    2 / 945,
    -1 / 4725,
    2 / 93555,
    -1382 / 638512875,
    4 / 18243225,
    -3617 / 162820783125,
    87734 / 38979295480125,
    -349222 / 1531329465290625,
)


def _window(rate, t):
    r"""$t\,(1 - \coth z + 1/z)$, where $z$ is half the rate times $t$."""
    z = rate * t / 2
    is_small = z < 0.5
    s, z = jnp.where(is_small, z, 0), jnp.where(is_small, 0.5, z)
    series = s * jnp.polyval(jnp.asarray(_COTH[::-1], s.dtype), s**2)
    return jnp.where(is_small, t * (1 - series), 2 / rate - 2 * t / jnp.expm1(2 * z))


class ScaleByRAdam(AbstractLeafwise):
    r"""Divides like Adam, to the extent that the second moment is reliable.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      \rho_t &= \rho_\infty - 2 t \beta_2^t / (1 - \beta_2^t) &
      \rho_\infty &= 2 / (1 - \beta_2) - 1 \\
      r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}
        {(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}} &
      u_t &= \begin{cases}
        r_t\, \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} + \varepsilon\big)
          & \text{if } \rho_t \ge \rho_{\min} \\
        \hat\mu_t & \text{otherwise}
      \end{cases}
    \end{aligned}$$

    With `nesterov`, $\hat\mu_t$ is replaced by $\beta_1 \mu_t / (1 - \beta_1^{t+1}) +
    (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Up to 0.6, the first
        moment is never divided. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `threshold`: $\rho_{\min} \ge 4$. It is 4 in the paper, and 5 in the authors'
        code. Defaults to 5.0.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{liu2020variance,
            author = {Liu, Liyuan and Jiang, Haoming and He, Pengcheng and
                      Chen, Weizhu and Liu, Xiaodong and Gao, Jianfeng and Han, Jiawei},
            title = {On the Variance of the Adaptive Learning Rate and Beyond},
            booktitle = {International Conference on Learning Representations},
            year = {2020},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    threshold: Annotated[Hyperparameter, Interval(4)] = 5.0
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByRAdamState:
        return init_moments(self, ScaleByRAdamState, params)

    def leafwise(
        self, state: ScaleByRAdamState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        r = rectification(as_float(self.b2), count, as_float(self.threshold))
        return counted(self, radam, state, count=count, r=r)


class RAdam(AbstractRecipe):
    r"""RAdam, rectified Adam: its warm-up follows from the decay of the second moment.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          \rho_t &= \rho_\infty - 2 t \beta_2^t / (1 - \beta_2^t) &
          \rho_\infty &= 2 / (1 - \beta_2) - 1 \\
          r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}
            {(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}} &
          u_t &= \begin{cases}
            r_t\, \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
                \varepsilon\big)
              & \text{if } \rho_t \ge \rho_{\min} \\
            \hat\mu_t & \text{otherwise}
          \end{cases}
        \end{aligned}$$

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta_1 \mu_t / (1 - \beta_1^{t+1}) + (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByRAdam`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0), $\rho_{\min}$ is `threshold` (5.0). By default, `nesterov` is
        `False`.

    The first steps (five by default) are steps of gradient descent with momentum, and
    as long as the gradients. `torch.optim.RAdam` adds $\varepsilon$ before it corrects
    the bias of the root, which weakens $\varepsilon$ at first.

    !!! example

        ```python
        opt = eqopt.RAdam(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Up to 0.6, the first
        moment is never divided. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `threshold`: $\rho_{\min} \ge 4$. It is 4 in the paper, and 5 in the authors'
        code. Defaults to 5.0.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** if Adam needs a warm-up and you do not want to tune one. The
    first steps are as long as the gradients: clip them if they may be large.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{liu2020variance,
            author = {Liu, Liyuan and Jiang, Haoming and He, Pengcheng and
                      Chen, Weizhu and Liu, Xiaodong and Gao, Jianfeng and Han, Jiawei},
            title = {On the Variance of the Adaptive Learning Rate and Beyond},
            booktitle = {International Conference on Learning Representations},
            year = {2020},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    threshold: Annotated[Hyperparameter, Interval(4)] = 5.0
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByRAdam, ScaleByLearningRate
