"""Stable-SPAM: Adam with gradient spikes removed, and with resets of its moments."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.block import AdaClipGN, cosine_factor
from ..._types import (
    ClosedUnit,
    Count,
    Mask,
    Params,
    ScalarOrSchedule,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, as_float, bias_correction, safe_increment
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByAdamWithResetState(AbstractMomentsState):
    """The moments of the gradients since the last reset.

    **Attributes:**

    - `count`: the steps taken so far, including those before the reset, a 0-d int32
        array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def adam_with_reset(g, mu, nu, *, b1, b2, eps, mu_correction, nu_correction, is_reset):
    mu = (1 - b1) * g + b1 * jnp.where(is_reset, 0, mu)
    nu = (1 - b2) * abs_sq(g) + b2 * jnp.where(is_reset, 0, nu)
    return mu / mu_correction / root_plus(nu / nu_correction, eps), mu, nu


class ScaleByAdamWithReset(AbstractLeafwise):
    r"""[`eqopt.ScaleByAdam`][] with moments that restart after a number of steps.

    !!! abstract "One step"

        In every step whose number is a multiple of `reset_every`, first

        $$\mu_{t-1} \leftarrow 0, \qquad \nu_{t-1} \leftarrow 0, \qquad t \leftarrow 1$$

        in the update of [`eqopt.ScaleByAdam`][], with $\bar\varepsilon = 0$.

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $g_t$ is the gradient. At the start, $\mu_0 = \nu_0 = 0$. $\beta_1$ is `b1`
        (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8). By default,
        `reset_every` is 1000.

    So the moments forget a spike, which would otherwise keep steps small for a long time
    through $\nu$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `reset_every`: an integer of at least 1, or `None` for no reset. Defaults to 1000.
    - `total_steps`: $T$, an integer of at least 1, or `None` for $s_t = 1$. The factor
        $s_t$ multiplies $\beta_1$.
    - `eta_min`: $s \in [0, 1]$. Defaults to 0.5.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    reset_every: Count | None = 1000
    total_steps: Count | None = None
    eta_min: ClosedUnit = 0.5
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdamWithResetState:
        return init_moments(self, ScaleByAdamWithResetState, params)

    def leafwise(
        self,
        state: ScaleByAdamWithResetState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        count = safe_increment(state.count)
        is_reset, since = jnp.zeros((), bool), count
        if self.reset_every is not None:
            past = count % jnp.asarray(self.reset_every, count.dtype)
            is_reset = past == 0
            since = jnp.where(past == count, count, past + 1)
        b1 = as_float(self.b1) * cosine_factor(self, count)
        return counted(
            self,
            adam_with_reset,
            state,
            count=count,
            b1=b1,
            mu_correction=bias_correction(b1, since),
            nu_correction=bias_correction(self.b2, since),
            is_reset=is_reset,
        )


class StableSPAM(AbstractRecipe):
    r"""Stable-SPAM: Adam with gradient spikes removed, and with resets of its moments.

    !!! abstract "One step"

        It applies AdaClip, then AdaGN. AdaClip compares the elements of a leaf with the
        mean $\tau$ of its past maxima:

        $$\begin{aligned}
          \tau_t &= \gamma_3 \tau_{t-1} + (1 - \gamma_3) \max_i |g_{t,i}| &
          \hat\tau_t &= \tau_t / (1 - \gamma_3^t) \\
          c_{t,i} &= \begin{cases}
            g_{t,i}\, \hat\tau_t / \max_j |g_{t,j}| &
                \text{if } |g_{t,i}| > \hat\tau_t \\
            g_{t,i} & \text{otherwise}
          \end{cases}
        \end{aligned}$$

        AdaGN scales the leaf to a norm of about one, and to less if its norm has
        varied:

        $$\begin{aligned}
          a_t &= \gamma_1 a_{t-1} + (1 - \gamma_1)\, \|c_t\| &
          \hat a_t &= a_t / (1 - \gamma_1^t) \\
          b_t &= \gamma_2 b_{t-1} + (1 - \gamma_2)\, \|c_t\|^2 &
          \hat b_t &= b_t / (1 - \gamma_2^t) \\
          h_t &= \frac{c_t}{\|c_t\|} \cdot
            \frac{\hat a_t}{\sqrt{\hat b_t} + \varepsilon}
        \end{aligned}$$

        where $c_t = 0$ stays zero.

        With `total_steps`, $\gamma_1$ and $\beta_1$ are multiplied by a factor that
        falls from 1 to $s$ and then stays constant. For $t \le T + 1$, it is

        $$s_t = s + \tfrac12 (1 - s) \left(1 + \cos \frac{\pi t}{T + 1}\right).$$

        In every step whose number is a multiple of `reset_every`, first

        $$\mu_{t-1} \leftarrow 0, \qquad \nu_{t-1} \leftarrow 0, \qquad t \leftarrow 1$$

        Then follows a step of Adam with $h_t$ as the gradient:

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, h_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |h_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $h_t$ is the update of [`eqopt.AdaClipGN`][], and $u_t$ is the update of
        [`eqopt.ScaleByAdamWithReset`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\tau_0 = a_0 = b_0 = \mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$
        is `b1` (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8),
        $\gamma_1$ is `gamma1` (0.7), $\gamma_2$ is `gamma2` (0.9), $\gamma_3$ is
        `gamma3` (0.999), $T$ is `total_steps`, $s$ is `eta_min` (0.5), $\lambda$ is
        `weight_decay` (0.0). By default, `reset_every` is 1000.

    It differs from the authors' code in two points. In that code, the step of a reset
    still averages with the old moments. And a reset restarts the bias corrections of
    $\tau$, $a$ and $b$, although these averages continue: so for a few hundred steps
    after a reset, it does not clip.

    !!! example

        ```python
        opt = eqopt.StableSPAM(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside both roots. Defaults to 1e-8.
    - `gamma1`: $\gamma_1 \in [0, 1)$, the decay of the norm. Defaults to 0.7.
    - `gamma2`: $\gamma_2 \in [0, 1)$, the decay of its square. Defaults to 0.9.
    - `gamma3`: $\gamma_3 \in [0, 1)$, the decay of the largest modulus. Defaults to
        0.999.
    - `reset_every`: an integer of at least 1, or `None` for no reset. Defaults to 1000.
    - `total_steps`: $T$, an integer of at least 1. The factor $s_t$ multiplies
        $\beta_1$ and $\gamma_1$. Defaults to `None`, which means $s_t = 1$.
    - `eta_min`: $s \in [0, 1]$. Defaults to 0.5.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** if gradient spikes destabilize Adam, as in language models with
    four-bit weights and activations. For these, its authors report the losses of Adam
    in about half the steps. It ignores the scale of each layer's gradients, so do not
    clip the global norm too.

    ??? cite "Reference"

        ```bibtex
        @article{huang2025stable,
            author = {Huang, Tianjin and Hu, Haotian and Zhang, Zhenyu and Jin, Gaojie
                      and Li, Xiang and Shen, Li and Chen, Tianlong and Liu, Lu and
                      Wen, Qingsong and Wang, Zhangyang and Liu, Shiwei},
            title = {{Stable-SPAM}: How to Train in 4-Bit More Stably than 16-Bit Adam},
            journal = {arXiv:2502.17055},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    gamma1: Unit = 0.7
    gamma2: Unit = 0.9
    gamma3: Unit = 0.999
    reset_every: Count | None = 1000
    total_steps: Count | None = None
    eta_min: ClosedUnit = 0.5
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = AdaClipGN, ScaleByAdamWithReset, AddDecayedWeights, ScaleByLearningRate
