"""Lion: the sign of an interpolated momentum."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Hyperparameter, Mask, Params, ScalarOrSchedule, Unit, Updates
from ...tree._like import wide_zeros_like
from ..moments import counted
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByLionState(eqx.Module):
    """The momentum.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the gradients so far, a tree like the parameters.
    """

    count: Int[Array, ""]
    mu: Updates


@equation(elementwise=True)
def lion(g, mu, *, b1, b2, smooth_beta, sign: Callable[[Array, Array], Array]):
    c = b1 * mu + (1 - b1) * g
    return sign(c, smooth_beta), b2 * mu + (1 - b2) * g


_SIGNS = {
    "hard": lambda c, beta: jnp.sign(c),
    # Not the complex tanh, which has poles.
    "smooth": lambda c, beta: jnp.sign(c) * jnp.tanh(beta * jnp.abs(c)),
    "refined": lambda c, beta: jnp.where(jnp.abs(c) < 1, c, jnp.sign(c)),
}


class ScaleByLion(AbstractLeafwise):
    r"""The sign of a mean of the gradient and the momentum.

    $$\begin{aligned}
      c_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t & u_t &= \operatorname{sign}(c_t) \\
      \mu_t &= \beta_2 \mu_{t-1} + (1 - \beta_2)\, g_t
    \end{aligned}$$

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the weight of the momentum in the update. Defaults to
        0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the momentum. Defaults to 0.99.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `mode`: `"hard"` for the sign; `"smooth"` for $\tanh(s\,c_t)$; `"refined"` for
        $c_t$ itself if $|c_t| < 1$, otherwise the sign. Defaults to `"hard"`.
    - `smooth_beta`: $s$, a number or a 0-d array, for the mode `"smooth"`. Defaults to
        1.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if there is no such
    `mode`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{chen2023symbolic,
            author = {Chen, Xiangning and Liang, Chen and Huang, Da and Real, Esteban and
                      Wang, Kaiyuan and Pham, Hieu and Dong, Xuanyi and Luong, Thang and
                      Hsieh, Cho-Jui and Lu, Yifeng and Le, Quoc V.},
            title = {Symbolic Discovery of Optimization Algorithms},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.99
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mode: Literal["hard", "smooth", "refined"] = eqx.field(static=True, default="hard")
    smooth_beta: Hyperparameter = 1.0

    def init(self, params: Params) -> ScaleByLionState:
        mu = wide_zeros_like(params, self.mu_dtype)
        return ScaleByLionState(count=jnp.zeros((), jnp.int32), mu=mu)

    def leafwise(
        self, state: ScaleByLionState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, lion, state, sign=_SIGNS[self.mode])


class Lion(AbstractRecipe):
    r"""Lion: every coordinate moves by the learning rate in each step.

    !!! abstract "One step"

        $$\begin{aligned}
          c_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
              u_t &= \operatorname{sign}(c_t) \\
          \mu_t &= \beta_2 \mu_{t-1} + (1 - \beta_2)\, g_t
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByLion`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\beta_2$ is
        `b2` (0.99), $\lambda$ is `weight_decay` (0.001).

    The weight decay is decoupled. Compared to AdamW, use a learning rate that is 3 to
    10 times smaller, and a decay that is larger by the same factor.

    !!! example

        ```python
        opt = eqopt.Lion(3e-4)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the weight of the momentum in the update. Defaults to
        0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the momentum. Defaults to 0.99.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.001.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.

    **When to use it:** if memory is short and the batch is large. It holds one moment
    instead of two, and the sign of a noisy gradient is mostly noise.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{chen2023symbolic,
            author = {Chen, Xiangning and Liang, Chen and Huang, Da and Real, Esteban
                      and Wang, Kaiyuan and Pham, Hieu and Dong, Xuanyi and Luong, Thang
                      and Hsieh, Cho-Jui and Lu, Yifeng and Le, Quoc V.},
            title = {Symbolic Discovery of Optimization Algorithms},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.99
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: WeightDecay = 1e-3
    mask: Mask | None = static_choice(default=None)

    _parts = ScaleByLion, AddDecayedWeights, ScaleByLearningRate
