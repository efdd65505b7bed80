"""Optimistic Adam: expects the next update to change like the last one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._core import AbstractLeafwise, Leafwise
from ..._transforms.scale import at, negative, recorded, take_rate
from ..._types import Params, Recorded, ScalarOrSchedule, Unit, Updates, ZeroOrMore
from ...tree._like import wide_zeros_like
from ..moments import counted
from ..recipe import AbstractRecipe
from ..sgd.optimistic import optimistic
from .adam import ScaleByAdam


class DescendOptimisticallyState(eqx.Module):
    """The states of `ScaleByLearningRate` and `ScaleByOptimisticGradient` combined."""

    count: Int[Array, ""]
    learning_rate: Recorded
    previous_gradient: Updates


class DescendOptimistically(AbstractLeafwise):
    r"""$u_t = -\eta_t\, g_t - o_t\, (g_t - g_{t-1})$, where $o_t$ may equal $\eta_t$.

    One transformation instead of two: dividing $o_t$ by a learning rate that is applied
    later would fail for a learning rate of zero.
    """

    _descends = True

    learning_rate: ScalarOrSchedule
    optimism: ScalarOrSchedule | None = None

    def init(self, params: Params) -> DescendOptimisticallyState:
        count = jnp.zeros((), jnp.int32)
        eta = recorded(at(self, "learning_rate", count))
        return DescendOptimisticallyState(count, eta, wide_zeros_like(params))

    def leafwise(
        self,
        state: DescendOptimisticallyState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        eta, state = take_rate(self, state)
        optimism = eta if self.optimism is None else at(self, "optimism", state.count)
        return counted(
            self,
            optimistic,
            state,
            alpha=negative(eta),
            beta=negative(optimism),
            is_first=state.count == 0,
        )


class OptimisticAdam(AbstractRecipe):
    r"""Adam with optimism, for adversarial training and other games.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta_1 \mu_t / (1 - \beta_1^{t+1}) + (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

        $$p_t = p_{t-1} - \eta_t\, u_t - o_t\, (u_t - u_{t-1}), \qquad u_0 = u_1,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $o$ is `optimism`, $\beta_1$ is
        `b1` (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8),
        $\bar\varepsilon$ is `eps_root` (0.0). By default, `nesterov` is `True`.

    It spirals into saddle points, while plain Adam circles them.

    !!! example

        ```python
        opt = eqopt.OptimisticAdam(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `optimism`: $o$, a number, a 0-d array or a schedule. Defaults to `None`, which
        means $\eta$, as in the paper.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum; the paper does not. Defaults to
        `True`.

    **When to use it:** for adversarial training, instead of Adam.

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
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdam, DescendOptimistically
