"""SGD and AdamW with averages of the parameters instead of a schedule."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate, at
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import CountOrZero, Mask, ScalarOrSchedule, Unit, UpToOne, ZeroOrMore
from ..._wrappers.averages.gradient_points import ScheduleFree
from ...schedules import AbstractSchedule, Linear
from ..adaptive.rmsprop import ScaleByRMS


class WarmUp(AbstractSchedule):
    """A learning rate or schedule with a linear warm-up factor from 0 to 1."""

    learning_rate: ScalarOrSchedule
    warmup_steps: CountOrZero

    def __call__(self, count: Any) -> Any:
        eta = at(self, "learning_rate", count)
        ramp = Linear(0.0, 1.0, self.warmup_steps)(count)
        return ramp * jnp.asarray(eta, ramp.dtype)


class ScheduleFreeSGD(AbstractOptimizer):
    r"""SGD without a schedule.

    !!! abstract "One step"

        The updates lead to points $z$:

        $$u_t = -\eta_t\, (g_t + \lambda y_{t-1})$$

        Their average $x$ and the parameters $y$ are, as in [`eqopt.ScheduleFree`][],

        $$\begin{aligned}
          z_t &= z_{t-1} + u_t & z_0 &= x_0 = y_0 \\
          x_t &= (1 - c_t)\, x_{t-1} + c_t\, z_t &
            c_t &= \frac{w_t}{\sum_{i \le t} w_i}, \quad
            w_t = \big(\max_{i \le t} \eta_i\big)^{\rho} \\
          y_t &= \beta_1 x_t + (1 - \beta_1)\, z_t
        \end{aligned}$$

        Compute the gradients $g_t$ at the parameters $y_{t-1}$. Evaluate with $x$, that
        is with `opt.eval_params(state, params)`.

        $g_t$ is the gradient. $\eta$ is `learning_rate` (1.0), $\beta_1$ is `b1` (0.9),
        $\lambda$ is `weight_decay` (0.0), $\rho$ is `weight_lr_power` (2.0).

    !!! example

        ```python
        opt = eqopt.ScheduleFreeSGD(1.0)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        evaluated = opt.eval_params(state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Defaults to 1.0.
    - `warmup_steps`: $T \ge 0$, an integer: $\eta$ is multiplied by $\min(t / T, 1)$,
        $t = 0, 1, …$ Defaults to `None`, which means no warm-up.
    - `b1`: $\beta_1 \in (0, 1]$. Defaults to 0.9.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `weight_lr_power`: $\rho \ge 0$. Defaults to 2.0.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    **When to use it:** instead of SGD with momentum and a schedule. Its best learning
    rate is much higher: search upwards.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{defazio2024road,
            author = {Defazio, Aaron and Yang, Xingyu Alice and Mehta, Harsh and
                      Mishchenko, Konstantin and Khaled, Ahmed and Cutkosky, Ashok},
            title = {The Road Less Scheduled},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule = 1.0
    warmup_steps: CountOrZero | None = None
    b1: UpToOne = 0.9
    weight_decay: WeightDecay = 0.0
    weight_lr_power: ZeroOrMore = 2.0
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mask: Mask | None = static_choice(default=None)

    @property
    def chain(self) -> ScheduleFree:
        return _schedule_free(self)


class ScheduleFreeAdamW(AbstractOptimizer):
    r"""AdamW without a schedule.

    !!! abstract "One step"

        The updates lead to points $z$:

        $$\begin{aligned}
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= -\eta_t\, \big(g_t \big/ (\sqrt{\hat\nu_t} + \varepsilon)
            + \lambda y_{t-1}\big)
        \end{aligned}$$

        Their average $x$ and the parameters $y$ are, as in [`eqopt.ScheduleFree`][],

        $$\begin{aligned}
          z_t &= z_{t-1} + u_t & z_0 &= x_0 = y_0 \\
          x_t &= (1 - c_t)\, x_{t-1} + c_t\, z_t &
            c_t &= \frac{w_t}{\sum_{i \le t} w_i}, \quad
            w_t = \big(\max_{i \le t} \eta_i\big)^{\rho} \\
          y_t &= \beta_1 x_t + (1 - \beta_1)\, z_t
        \end{aligned}$$

        Compute the gradients $g_t$ at the parameters $y_{t-1}$. Evaluate with $x$, that
        is with `opt.eval_params(state, params)`.

        $g_t$ is the gradient. At the start, $\nu_0 = 0$. $\eta$ is `learning_rate`
        (0.0025), $\beta_1$ is `b1` (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is
        `eps` (1e-8), $\lambda$ is `weight_decay` (0.0), $\rho$ is `weight_lr_power`
        (2.0).

    There is no first moment: the average uses $\beta_1$ instead.

    !!! example

        ```python
        opt = eqopt.ScheduleFreeAdamW(2.5e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        evaluated = opt.eval_params(state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Defaults to 0.0025.
    - `warmup_steps`: $T \ge 0$, an integer: $\eta$ is multiplied by $\min(t / T, 1)$,
        $t = 0, 1, …$ Defaults to `None`, which means no warm-up.
    - `b1`: $\beta_1 \in (0, 1]$. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `weight_lr_power`: $\rho \ge 0$. Defaults to 2.0.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nu_dtype`: the dtype in which the second moment is stored. Defaults to `None`,
        which means the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    **When to use it:** instead of AdamW with a cosine schedule, if you do not know how
    long you will train, or if the model must be good at any time. Its best learning
    rate is higher.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{defazio2024road,
            author = {Defazio, Aaron and Yang, Xingyu Alice and Mehta, Harsh and
                      Mishchenko, Konstantin and Khaled, Ahmed and Cutkosky, Ashok},
            title = {The Road Less Scheduled},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule = 0.0025
    warmup_steps: CountOrZero | None = None
    b1: UpToOne = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.0
    weight_lr_power: ZeroOrMore = 2.0
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mask: Mask | None = static_choice(default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> ScheduleFree:
        normalize = self.part(
            ScaleByRMS, decay=self.b2, eps_in_sqrt=False, bias_correction=True
        )
        return _schedule_free(self, normalize)


def _schedule_free(opt, *preconditioner) -> ScheduleFree:
    warm_up = opt.warmup_steps
    eta = opt.learning_rate if warm_up is None else WarmUp(opt.learning_rate, warm_up)
    decay = AddDecayedWeights(opt.weight_decay, opt.mask, learning_rate=eta)
    inner = Chain(*preconditioner, decay, ScaleByLearningRate(eta))
    return opt.part(ScheduleFree, inner=inner, learning_rate=eta)
