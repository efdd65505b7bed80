"""Adamax: Adam with the largest gradient instead of the mean square."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ..moments import AbstractMomentsState, counted, init_moments, or_tiny
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByAdamaxState(AbstractMomentsState):
    """The mean and the size of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the infinity moment, real also for complex parameters.
    """


@equation(elementwise=True)
def adamax(g, mu, nu, *, b1, b2, eps, mu_correction):
    mu = (1 - b1) * g + b1 * mu
    nu = jnp.maximum(b2 * nu, jnp.abs(g) + or_tiny(eps))
    return (mu / mu_correction) / nu, mu, nu


class ScaleByAdamax(AbstractLeafwise):
    r"""Divides the mean of the gradients by their decaying largest absolute value.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \max(\beta_2 \nu_{t-1},\, |g_t| + \varepsilon) &
      u_t &= \hat\mu_t / \nu_t
    \end{aligned}$$

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the infinity moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $\nu$. Defaults to 1e-8.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdamaxState:
        return init_moments(self, ScaleByAdamaxState, params)

    def leafwise(
        self, state: ScaleByAdamaxState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, adamax, state)


class Adamax(AbstractRecipe):
    r"""Adamax: Adam with the infinity norm instead of the Euclidean norm.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \max(\beta_2 \nu_{t-1},\, |g_t| + \varepsilon) &
          u_t &= \hat\mu_t / \nu_t
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdamax`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8).

    The $\varepsilon$ is inside the maximum, as in `torch.optim.Adamax`.

    !!! example

        ```python
        opt = eqopt.Adamax(2e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the infinity moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $\nu$. Defaults to 1e-8.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** if gradients are sparse or have heavy tails. One outlier
    determines the scale until it has decayed, and no coordinate ever moves much further
    than the learning rate.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdamax, ScaleByLearningRate


class AdamaxW(AbstractRecipe):
    r"""Adamax with decoupled weight decay.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \max(\beta_2 \nu_{t-1},\, |g_t| + \varepsilon) &
          u_t &= \hat\mu_t / \nu_t
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdamax`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\lambda$ is
        `weight_decay` (0.0001).

    (The `weight_decay` of `torch.optim.Adamax` is different: it is added to the
    gradients.)

    !!! example

        ```python
        opt = eqopt.AdamaxW(2e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the infinity moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $\nu$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0001.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** like Adamax, with weight decay.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 1e-4
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdamax, AddDecayedWeights, ScaleByLearningRate
