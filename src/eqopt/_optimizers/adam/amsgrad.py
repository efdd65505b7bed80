"""AMSGrad: Adam whose second moment never shrinks."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Nonnegative, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ...tree._like import real_full_like
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, ScaleByLearningRate


class ScaleByAMSGradState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    - `nu_max`: the largest second moment so far, in the dtype of `nu`.
    """

    nu_max: Nonnegative


@equation(elementwise=True)
def amsgrad(g, mu, nu, nu_max, *, b1, b2, eps, eps_root, mu_correction, nu_correction):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    mu_hat = mu if mu_correction is None else mu / mu_correction
    nu_hat = nu if nu_correction is None else nu / nu_correction
    nu_max = jnp.maximum(nu_max, nu_hat)
    return mu_hat / root_plus(nu_max + eps_root, eps), mu, nu, nu_max


class ScaleByAMSGrad(AbstractLeafwise):
    r"""Divides the mean of the gradients by the largest root mean square so far.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      \nu^{\max}_t &= \max(\nu^{\max}_{t-1},\, \hat\nu_t) &
      u_t &= \hat\mu_t \big/ \big(\sqrt{\nu^{\max}_t + \bar\varepsilon} + \varepsilon\big)
    \end{aligned}$$

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and both $\nu$ are stored.
        Default to the dtype of each parameter, at least float32.
    - `bias_correction_mu`: whether to correct the bias of $\mu$. Otherwise,
        $\hat\mu_t = \mu_t$, as in the paper. Defaults to `True`.
    - `bias_correction_nu`: whether to correct the bias of $\nu$. Otherwise,
        $\hat\nu_t = \nu_t$, as in the paper. Defaults to `True`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{reddi2018convergence,
            author = {Reddi, Sashank J. and Kale, Satyen and Kumar, Sanjiv},
            title = {On the Convergence of {A}dam and Beyond},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAMSGradState:
        nu_max = real_full_like(params, 0, self.nu_dtype)
        return init_moments(self, ScaleByAMSGradState, params, nu_max=nu_max)

    def leafwise(
        self, state: ScaleByAMSGradState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        corrects = {"mu": self.bias_correction_mu, "nu": self.bias_correction_nu}
        off = {f"{x}_correction": None for x, is_on in corrects.items() if not is_on}
        return counted(self, amsgrad, state, **off)


class AMSGrad(AbstractRecipe):
    r"""AMSGrad: Adam with a step size that never grows back.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          \nu^{\max}_t &= \max(\nu^{\max}_{t-1},\, \hat\nu_t) &
          u_t &= \hat\mu_t \big/ \big(\sqrt{\nu^{\max}_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAMSGrad`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0).

    `torch.optim.Adam` with `amsgrad` computes the maximum before it corrects the bias,
    $\hat\nu_t = \max_{s \le t} \nu_s / (1 - \beta_2^t)$. So it forgets large early
    gradients, which this class remembers.

    !!! example

        ```python
        opt = eqopt.AMSGrad(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and both $\nu$ are stored.
        Default to `None`, which means the dtype of each parameter, at least float32.
    - `bias_correction_mu`: whether to correct the bias of $\mu$. Otherwise,
        $\hat\mu_t = \mu_t$, as in the paper. Defaults to `True`.
    - `bias_correction_nu`: whether to correct the bias of $\nu$. Otherwise,
        $\hat\nu_t = \nu_t$, as in the paper. Defaults to `True`.

    **When to use it:** if Adam does not converge because it forgets rare large
    gradients. Usually it makes little difference.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{reddi2018convergence,
            author = {Reddi, Sashank J. and Kale, Satyen and Kumar, Sanjiv},
            title = {On the Convergence of {A}dam and Beyond},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAMSGrad, ScaleByLearningRate
