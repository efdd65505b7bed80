"""Optimistic gradients: expects the next gradient to change like the last one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate, at
from ..._types import Params, ScalarOrSchedule, Updates
from ...tree import zeros_like
from ..moments import counted
from ..recipe import AbstractRecipe


class ScaleByOptimisticGradientState(eqx.Module):
    """The last gradients.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `previous_gradient`: the incoming updates of the last step.
    """

    count: Int[Array, ""]
    previous_gradient: Updates


@equation(elementwise=True)
def optimistic(g, previous_gradient, *, alpha, beta, is_first):
    change = jnp.where(is_first, 0, g - previous_gradient)
    return alpha * g + beta * change, g


class ScaleByOptimisticGradient(AbstractLeafwise):
    r"""Adds the change since the last gradient to each gradient.

    $$u_t = \alpha\, g_t + \beta\, (g_t - g_{t-1}), \qquad g_0 = g_1.$$

    There is no change in the first step, so nothing is added.

    **Arguments:**

    - `alpha`: $\alpha$, the weight of the gradient: a number, a 0-d array or a
        schedule. Defaults to 1.0.
    - `beta`: $\beta$, the weight of its change: a number, a 0-d array or a schedule.
        Defaults to 1.0.

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

    _stores_in_turn = True

    alpha: ScalarOrSchedule = 1.0
    beta: ScalarOrSchedule = 1.0

    def init(self, params: Params) -> ScaleByOptimisticGradientState:
        # A copy of a gradient is exact in the dtype of the parameter.
        previous = zeros_like(params)
        return ScaleByOptimisticGradientState(jnp.zeros((), jnp.int32), previous)

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
            alpha=at(self, "alpha", state.count),
            beta=at(self, "beta", state.count),
            is_first=state.count == 0,
        )


class OptimisticGradientDescent(AbstractRecipe):
    r"""Optimistic gradient descent, for two-player games and saddle points.

    !!! abstract "One step"

        $$u_t = \alpha\, g_t + \beta\, (g_t - g_{t-1}), \qquad g_0 = g_1.$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByOptimisticGradient`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`, $\alpha$ is `alpha` (1.0), $\beta$ is `beta` (1.0).

    !!! example

        ```python
        opt = eqopt.OptimisticGradientDescent(0.1)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `alpha`: $\alpha$, the weight of the gradient: a number, a 0-d array or a
        schedule. Defaults to 1.0.
    - `beta`: $\beta$, the weight of its change: a number, a 0-d array or a schedule.
        Defaults to 1.0.

    **When to use it:** to find saddle points of smooth games, where gradient descent
    circles or diverges. For a plain minimum, it has no advantage.

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

    learning_rate: ScalarOrSchedule
    alpha: ScalarOrSchedule = 1.0
    beta: ScalarOrSchedule = 1.0

    _parts = ScaleByOptimisticGradient, ScaleByLearningRate
