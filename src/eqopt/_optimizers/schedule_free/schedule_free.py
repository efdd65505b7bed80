"""SGD and AdamW with averages of the parameters instead of a schedule."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_count, check_range, check_scalar
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate, at
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import Hyperparameter, IntegerLike, Mask, Scalar, ScalarOrSchedule
from ..._wrappers.averages.schedule_free import ScheduleFree
from ...schedules import AbstractSchedule, Linear
from ..adaptive.rmsprop import ScaleByRMS


class WarmUp(AbstractSchedule):
    """A learning rate or schedule with a linear warm-up factor from 0 to 1."""

    learning_rate: ScalarOrSchedule
    warmup_steps: IntegerLike

    def __check_init__(self):
        check_scalar(self, "learning_rate")
        check_count(self, "warmup_steps", 0)

    def __call__(self, count: Any) -> Scalar:
        eta = at(self, "learning_rate", count)
        ramp = Linear(0.0, 1.0, self.warmup_steps)(count)
        return ramp * jnp.asarray(eta, ramp.dtype)


class ScheduleFreeSGD(AbstractOptimizer):
    r"""SGD without a schedule.

    The parameters are an average of the points that these updates lead to:

    $$u_t = -\eta_t\, (g_t + \lambda y_{t-1})$$

    in the average of [`eqopt.ScheduleFree`][], which has the equations and the reference.

    [`eqopt.ScheduleFree`][] also describes `eval_params`.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - `warmup_steps`: $T \ge 0$, an integer: $\eta$ is multiplied by $\min(t / T, 1)$,
        $t = 0, 1, …$ Defaults to no warm-up.
    - All others: see [`eqopt.ScheduleFree`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.
    """

    learning_rate: ScalarOrSchedule = 1.0
    warmup_steps: IntegerLike | None = None
    b1: Hyperparameter = 0.9
    weight_decay: WeightDecay = 0.0
    weight_lr_power: Hyperparameter = 2.0
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mask: Mask | None = static_choice(default=None)

    @property
    def chain(self) -> ScheduleFree:
        return _schedule_free(self)


class ScheduleFreeAdamW(AbstractOptimizer):
    r"""AdamW without a schedule.

    The parameters are an average of the points that these updates lead to:

    $$\begin{aligned}
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= -\eta_t\, \big(g_t \big/ (\sqrt{\hat\nu_t} + \varepsilon)
        + \lambda y_{t-1}\big)
    \end{aligned}$$

    in the average of [`eqopt.ScheduleFree`][], which has the equations and the reference.

    There is no first moment: the average uses $\beta_1$ instead.
    [`eqopt.ScheduleFree`][] also describes `eval_params`.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - `warmup_steps`: see [`eqopt.ScheduleFreeSGD`][].
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment.
    - `eps`: $\varepsilon \ge 0$.
    - `nu_dtype`: the dtype in which the second moment is stored. Defaults to the dtype
        of each parameter, at least float32.
    - All others: see [`eqopt.ScheduleFree`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.
    """

    learning_rate: ScalarOrSchedule = 0.0025
    warmup_steps: IntegerLike | None = None
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 0.0
    weight_lr_power: Hyperparameter = 2.0
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mask: Mask | None = static_choice(default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "b2", 0, 1)

    @property
    def chain(self) -> ScheduleFree:
        normalize = ScaleByRMS(
            self.b2,
            self.eps,
            eps_in_sqrt=False,
            bias_correction=True,
            nu_dtype=self.nu_dtype,
        )
        return _schedule_free(self, normalize)


def _schedule_free(
    opt: ScheduleFreeSGD | ScheduleFreeAdamW, *preconditioner: AbstractLeafwise
) -> ScheduleFree:
    warm_up = opt.warmup_steps
    eta = opt.learning_rate if warm_up is None else WarmUp(opt.learning_rate, warm_up)
    decay = AddDecayedWeights(opt.weight_decay, opt.mask, learning_rate=eta)
    return ScheduleFree(
        Chain(*preconditioner, decay, ScaleByLearningRate(eta)),
        eta,
        opt.b1,
        opt.weight_lr_power,
        opt.state_dtype,
    )
