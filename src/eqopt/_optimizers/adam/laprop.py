"""LaProp: Adam that normalizes before it averages."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByLaPropState(AbstractMomentsState):
    """The moments so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the normalized gradients, a tree like the parameters.
    - `nu`: the second moment of the gradients, real also for complex parameters.
    """


@equation(elementwise=True)
def laprop(g, mu, nu, *, b1, b2, eps, mu_correction, nu_correction):
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    d = g / root_plus(nu / nu_correction, eps)
    mu = (1 - b1) * d + b1 * mu
    return mu / mu_correction, mu, nu


class ScaleByLaProp(AbstractLeafwise):
    r"""Averages gradients that have been divided by the root of their mean square.

    $$\begin{aligned}
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\,
        g_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big) \\
      u_t &= \mu_t / (1 - \beta_1^t)
    \end{aligned}$$

    [`eqopt.ScaleByAdam`][] averages first. If $\beta_1 > \beta_2$, a large gradient may
    then be divided by a second moment that no longer contains it. This cannot happen in
    LaProp.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-15.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{ziyin2020laprop,
            author = {Ziyin, Liu and Wang, Zhikang T. and Ueda, Masahito},
            title = {{LaProp}: Separating Momentum and Adaptivity in {A}dam},
            journal = {arXiv:2002.04839},
            year = {2020},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-15
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByLaPropState:
        return init_moments(self, ScaleByLaPropState, params)

    def leafwise(
        self, state: ScaleByLaPropState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, laprop, state)


class LaProp(AbstractRecipe):
    r"""LaProp: momentum of normalized gradients, with decoupled weight decay.

    !!! abstract "One step"

        $$\begin{aligned}
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\,
            g_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big) \\
          u_t &= \mu_t / (1 - \beta_1^t)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByLaProp`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\nu_0 = \mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-15), $\lambda$ is
        `weight_decay` (0.0).

    The authors' code differs in two points. It averages $\eta_t$ times the normalized
    gradient, which makes a difference while a schedule changes $\eta_t$. And $\eta_t$
    does not multiply its decay, as with the mode `"independent"` of
    [`eqopt.AddDecayedWeights`][].

    !!! example

        ```python
        opt = eqopt.LaProp(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-15.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** if Adam is unstable, or if the second moment must follow the
    gradients quickly, with $\beta_2$ below $\beta_1$, as in reinforcement learning. Its
    authors report faster and more stable training than with Adam on noisy problems and
    transformers.

    ??? cite "Reference"

        ```bibtex
        @article{ziyin2020laprop,
            author = {Ziyin, Liu and Wang, Zhikang T. and Ueda, Masahito},
            title = {{LaProp}: Separating Momentum and Adaptivity in {A}dam},
            journal = {arXiv:2002.04839},
            year = {2020},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-15
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByLaProp, AddDecayedWeights, ScaleByLearningRate
