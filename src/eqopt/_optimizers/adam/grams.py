"""Grams: Adam's step length, in the direction of the gradient."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByGramsState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def grams(g, mu, nu, *, b1, b2, eps, mu_correction, nu_correction):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    correction = jnp.sqrt(nu_correction) / mu_correction
    length = correction * jnp.abs(mu) / root_plus(nu, eps)
    return length * jnp.sign(g), mu, nu


class ScaleByGrams(AbstractLeafwise):
    r"""The length of Adam's update, with the sign of the gradient.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
      u_t &= \operatorname{sign}(g_t)\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\,
        \frac{|\mu_t|}{\sqrt{\nu_t} + \varepsilon}
    \end{aligned}$$

    The momentum determines the step length, and the current gradient the direction. If
    both have the same sign, and $\varepsilon = 0$, this is Adam. Where the gradient is
    zero, the update is zero, however large the momentum. The sign of a complex number
    is $g / |g|$.

    As in the authors' code, $\varepsilon$ is added to the root of the uncorrected
    $\nu_t$, so in the first steps it has a larger effect than in
    [`eqopt.ScaleByAdam`][]. In an [`eqopt.Chain`][], the sign is the sign of the
    incoming updates, so preceding parts, such as momentum, change it.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-6.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{cao2024grams,
            author = {Cao, Yang and Li, Xiaoyu and Song, Zhao},
            title = {Grams: Gradient Descent with Adaptive Momentum Scaling},
            journal = {arXiv:2412.17107},
            year = {2024},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByGramsState:
        return init_moments(self, ScaleByGramsState, params)

    def leafwise(
        self, state: ScaleByGramsState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, grams, state)


class Grams(AbstractRecipe):
    r"""Grams: Adam with steps in the direction of the gradient's signs.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
          u_t &= \operatorname{sign}(g_t)\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\,
            \frac{|\mu_t|}{\sqrt{\nu_t} + \varepsilon}
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByGrams`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-6), $\lambda$ is
        `weight_decay` (0.0).

    The weight decay is decoupled.

    !!! example

        ```python
        opt = eqopt.Grams(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-6.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** instead of Adam, with the same hyperparameters. The authors
    claim that it converges faster and generalizes better, especially in pre-training
    and fine-tuning of language models. The sign of a small batch is noisy, so try it
    with large batches first.

    ??? cite "Reference"

        ```bibtex
        @article{cao2024grams,
            author = {Cao, Yang and Li, Xiaoyu and Song, Zhao},
            title = {Grams: Gradient Descent with Adaptive Momentum Scaling},
            journal = {arXiv:2412.17107},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-6
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByGrams, AddDecayedWeights, ScaleByLearningRate
