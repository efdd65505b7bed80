"""AdaBelief: long steps where gradients are as expected."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus, unbiased
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByBeliefState(AbstractMomentsState):
    """The mean of the gradients so far, and their deviation from it.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment about the mean, real also for complex parameters.
    """


@equation(elementwise=True)
def belief(
    g, mu, nu, *, b1, b2, eps, eps_root, mu_correction, g_correction, nu_correction
):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g - mu) + b2 * nu + eps_root
    mu_hat = unbiased(mu, g, b1, mu_correction, g_correction)
    return mu_hat / root_plus(nu / nu_correction, eps), mu, nu


class ScaleByBelief(AbstractLeafwise):
    r"""Divides the mean of the gradients by their standard deviation.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t - \mu_t|^2 + \bar\varepsilon &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
    \end{aligned}$$

    With `nesterov`, $\hat\mu_t$ is replaced by $\beta_1 \mu_t / (1 - \beta_1^{t+1}) +
    (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-16.
    - `eps_root`: $\bar\varepsilon \ge 0$, added to the second moment in each step, so
        that it adds up to $\bar\varepsilon / (1 - \beta_2)$. Defaults to 1e-16.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhuang2020adabelief,
            author = {Zhuang, Juntang and Tang, Tommy and Ding, Yifan and
                      Tatikonda, Sekhar C. and Dvornek, Nicha and
                      Papademetris, Xenophon and Duncan, James},
            title = {{AdaBelief} Optimizer: Adapting Stepsizes by the Belief in Observed
                     Gradients},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2020},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-16
    eps_root: ZeroOrMore = 1e-16
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByBeliefState:
        return init_moments(self, ScaleByBeliefState, params)

    def leafwise(
        self, state: ScaleByBeliefState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, belief, state)


class AdaBelief(AbstractRecipe):
    r"""AdaBelief: Adam with longer steps for gradients that are close to their mean.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t - \mu_t|^2 +
              \bar\varepsilon &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
        \end{aligned}$$

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta_1 \mu_t / (1 - \beta_1^{t+1}) + (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByBelief`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-16), $\bar\varepsilon$ is
        `eps_root` (1e-16), $\lambda$ is `weight_decay` (0.0). By default, `nesterov` is
        `False`.

    The weight decay is decoupled, as in the authors' code by default. By default, that
    code also rectifies steps like [`eqopt.RAdam`][]. This class follows the paper,
    which does not.

    !!! example

        ```python
        opt = eqopt.AdaBelief(1e-3)
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
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** instead of Adam, if gradients are consistent. It is sensitive to
    `eps_root`: the authors use 1e-8 for convolutional networks (for both `eps`), and
    1e-16 for transformers and GANs.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhuang2020adabelief,
            author = {Zhuang, Juntang and Tang, Tommy and Ding, Yifan and
                      Tatikonda, Sekhar C. and Dvornek, Nicha and
                      Papademetris, Xenophon and Duncan, James},
            title = {{AdaBelief} Optimizer: Adapting Stepsizes by the Belief in Observed
                     Gradients},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2020},
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
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByBelief, AddDecayedWeights, ScaleByLearningRate
