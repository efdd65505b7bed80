"""Optimistic gradients: the next one is expected to change as the last one did."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Inexact, Int

from .._checks import check_scalar
from .._combinators.chain import Chain
from .._equations import equation
from .._pipeline import Leafwise
from .._transformation import AbstractLeafwise, AbstractOptimizer
from .._transforms.scale import ScaleByLearningRate, at, recorded
from .._types import Hyperparameter, Params, ScalarOrSchedule, Updates
from ..numerics import safe_increment
from ..tree import zeros_like
from .adam import ScaleByAdam
from .moments import counted


class ScaleByOptimisticGradientState(eqx.Module):
    """The last gradients.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `previous_gradient`: the updates that came in in the last step.
    """

    count: Int[Array, ""]
    previous_gradient: Updates


@equation
def optimistic(
    g: Inexact[Array, "*leaf"],
    previous_gradient: Inexact[Array, "*leaf"],
    *,
    alpha: Float[Array, ""],
    beta: Float[Array, ""],
    is_first: Bool[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    beta = jnp.where(is_first, 0, beta)
    return (alpha + beta) * g - beta * previous_gradient, g


class ScaleByOptimisticGradient(AbstractLeafwise):
    r"""Adds to each gradient what has changed since the last one.

    $$u_t = \alpha\, g_t + \beta\, (g_t - g_{t-1}), \qquad g_0 = g_1.$$

    As nothing is known before the first step, nothing is added in it.

    **Arguments:**

    - `alpha`: $\alpha$, the weight of the gradient, or a schedule.
    - `beta`: $\beta$, the weight of its change, or a schedule.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{mokhtari2020unified,
            author = {Mokhtari, Aryan and Ozdaglar, Asuman and Pattathil, Sarath},
            title = {A Unified Analysis of Extra-gradient and Optimistic Gradient
                     Methods for Saddle Point Problems: Proximal Point Approach},
            booktitle = {International Conference on Artificial Intelligence and
                         Statistics},
            year = {2020},
        }
        ```
    """

    alpha: ScalarOrSchedule = 1.0
    beta: ScalarOrSchedule = 1.0

    def __check_init__(self):
        for name in ("alpha", "beta"):
            check_scalar(self, name)

    def init(self, params: Params) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(
            count=jnp.zeros((), jnp.int32), previous_gradient=zeros_like(params)
        )

    def leafwise(
        self,
        state: ScaleByOptimisticGradientState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        return counted(
            self,
            optimistic,
            state,
            last=("previous_gradient",),
            alpha=at(self, "alpha", state.count),
            beta=at(self, "beta", state.count),
            is_first=state.count == 0,
        )


class OptimisticGradientDescent(AbstractOptimizer):
    r"""Optimistic gradient descent, for games of two players and saddle points.

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is that of [`eqopt.ScaleByOptimisticGradient`][], which has the equation
    and the reference.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - The others are those of [`eqopt.ScaleByOptimisticGradient`][].
    """

    learning_rate: ScalarOrSchedule
    alpha: ScalarOrSchedule = 1.0
    beta: ScalarOrSchedule = 1.0

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByOptimisticGradient), self.part(ScaleByLearningRate)
        )


class DescendOptimisticallyState(eqx.Module):
    """That of `ScaleByLearningRate` and of `ScaleByOptimisticGradient` in one."""

    count: Int[Array, ""]
    learning_rate: Float[Array, ""]
    previous_gradient: Updates


class DescendOptimistically(AbstractLeafwise):
    r"""$u_t = -\eta_t\, g_t - o_t\, (g_t - g_{t-1})$, where $o_t$ may well be $\eta_t$.

    One transformation and not two, because dividing $o_t$ by the learning rate that comes
    after it would fail where that is zero.
    """

    learning_rate: ScalarOrSchedule
    optimism: ScalarOrSchedule | None = None

    def __check_init__(self):
        for name in ("learning_rate", "optimism"):
            if getattr(self, name) is not None:
                check_scalar(self, name)

    def init(self, params: Params) -> DescendOptimisticallyState:
        count = jnp.zeros((), jnp.int32)
        eta = recorded(at(self, "learning_rate", count))
        return DescendOptimisticallyState(count, eta, zeros_like(params))

    def leafwise(
        self,
        state: DescendOptimisticallyState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        eta = at(self, "learning_rate", state.count)
        optimism = eta if self.optimism is None else at(self, "optimism", state.count)
        return Leafwise(
            optimistic,
            DescendOptimisticallyState(
                safe_increment(state.count), recorded(eta), state.previous_gradient
            ),
            {"alpha": -eta, "beta": -optimism, "is_first": state.count == 0},
            last=("previous_gradient",),
        )


class OptimisticAdam(AbstractOptimizer):
    r"""Adam with optimism, for adversarial training and other games.

    $$p_t = p_{t-1} - \eta_t\, u_t - o_t\, (u_t - u_{t-1}), \qquad u_0 = u_1,$$

    where $u_t$ is that of [`eqopt.ScaleByAdam`][], which has its equations. It spirals
    into saddle points round which plain Adam circles.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `optimism`: $o$, likewise. Defaults to $\eta$, as in the paper.
    - `nesterov`: whether to use Nesterov momentum; the paper does not.
    - The others are those of [`eqopt.ScaleByAdam`][].

    ??? cite "Reference"

        ```bibtex
        @inproceedings{daskalakis2018training,
            author = {Daskalakis, Constantinos and Ilyas, Andrew and Syrgkanis, Vasilis
                      and Zeng, Haoyang},
            title = {Training {GAN}s with Optimism},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    optimism: ScalarOrSchedule | None = None
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    eps_root: Hyperparameter = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(self.part(ScaleByAdam), self.part(DescendOptimistically))
