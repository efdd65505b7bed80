"""COCOB: each element bets on its own gradients, and needs no learning rate."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    Positive,
    ScalarOrSchedule,
    Updates,
    ZeroOrMore,
)
from ...tree._like import copy, real_full_like, wide_zeros_like


class ScaleByCOCOBState(eqx.Module):
    """The sums for the bets. All except the first two are real.

    **Attributes:**

    - `init_particles`: the parameters at the start, $p_0$.
    - `cumulative_gradients`: the sum of the negative gradients, $\\theta$.
    - `scale`: the largest gradient so far, $L$.
    - `subgradients`: the sum of the moduli of the gradients, $G$.
    - `reward`: the gain so far, $R$.
    """

    init_particles: Params
    cumulative_gradients: Updates
    scale: Nonnegative
    subgradients: Nonnegative
    reward: Nonnegative


@equation(elementwise=True)
def cocob(
    g,
    p,
    init_particles,
    cumulative_gradients,
    scale,
    subgradients,
    reward,
    *,
    alpha,
    eps,
):
    theta = cumulative_gradients - g
    scale = jnp.maximum(jnp.maximum(scale, jnp.abs(g)), eps)
    subgradients = subgradients + jnp.abs(g)
    reward = jnp.maximum(reward - (g.conj() * (p - init_particles)).real, 0)
    # There was no bet if all gradients were zero.
    safe_scale = jnp.where(scale > 0, scale, 1)
    fraction = theta / jnp.maximum(subgradients + safe_scale, alpha * safe_scale)
    bet = fraction * (1 + reward / safe_scale)
    return init_particles + bet - p, theta, scale, subgradients, reward


class ScaleByCOCOB(AbstractLeafwise):
    r"""Bets the gain from earlier gradients on the next gradient.

    !!! abstract "One step"

        $$\begin{aligned}
          L_t &= \max(L_{t-1}, |g_t|, \varepsilon) &
          R_t &= \max(R_{t-1} - g_t\, (p_{t-1} - p_0),\ 0) \\
          G_t &= G_{t-1} + |g_t| &
          \theta_t &= \theta_{t-1} - g_t \\
          p_t &= p_0 + \frac{\theta_t\, (L_t + R_t)}{L_t \max(G_t + L_t, \alpha L_t)} &
          u_t &= p_t - p_{t-1}
        \end{aligned}$$

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $L_0 = R_0 = G_0 = \theta_0 = 0$. $\alpha$ is `alpha` (100.0), $\varepsilon$ is
        `eps` (1e-8).

    The update already points downhill, so put it last in a chain. It needs `params`.
    Multiplying all gradients by the same number changes nothing.

    **Arguments:**

    - `alpha`: $\alpha > 0$. In the first step, an element moves by $1/\max(2, \alpha)$:
        with a smaller $\alpha$, the first steps are larger. Defaults to 100.0.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $L$. Defaults to 1e-8.
    - `accumulator_dtype`: the dtype in which $L$, $G$, $R$ and $\theta$ are stored.
        Defaults to the dtype of each parameter, at least float32. In bfloat16, a sum of
        many terms would stop growing.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{orabona2017training,
            author = {Orabona, Francesco and Tommasi, Tatiana},
            title = {Training Deep Networks without Learning Rates Through Coin Betting},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2017},
        }
        ```
    """

    _descends = True

    alpha: Positive = 100.0
    eps: ZeroOrMore = 1e-8
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByCOCOBState:
        zeros = lambda: real_full_like(params, 0, self.accumulator_dtype)
        return ScaleByCOCOBState(
            init_particles=copy(params),
            cumulative_gradients=wide_zeros_like(params, self.accumulator_dtype),
            scale=zeros(),
            subgradients=zeros(),
            reward=zeros(),
        )

    def leafwise(
        self, state: ScaleByCOCOBState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"init_particles": state.init_particles}
        return Leafwise(cocob, state, reads=reads)


class COCOB(AbstractOptimizer):
    r"""COCOB: gradient descent by coin betting, without a learning rate to tune.

    !!! abstract "One step"

        $$\begin{aligned}
          L_t &= \max(L_{t-1}, |g_t|, \varepsilon) &
          R_t &= \max(R_{t-1} - g_t\, (p_{t-1} - p_0),\ 0) \\
          G_t &= G_{t-1} + |g_t| &
          \theta_t &= \theta_{t-1} - g_t \\
          p_t &= p_0 + \frac{\theta_t\, (L_t + R_t)}{L_t \max(G_t + L_t, \alpha L_t)} &
          u_t &= p_t - p_{t-1}
        \end{aligned}$$

        $$p_t = p_{t-1} + u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByCOCOB`][], with
        $\eta_t\, (g_t + \lambda p_{t-1})$ instead of $g_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $L_0 = R_0 = G_0 = \theta_0 = 0$. $\eta$ is `learning_rate` (1.0), $\alpha$ is
        `alpha` (100.0), $\varepsilon$ is `eps` (1e-8), $\lambda$ is `weight_decay`
        (0.0).

    The weight decay is an $L^2$ penalty.

    !!! example

        ```python
        opt = eqopt.COCOB()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, the weight of each gradient: a number, a 0-d array or a
        schedule. A constant has no effect, because the scale of the gradients has none.
        Defaults to 1.0.
    - `alpha`: $\alpha > 0$. In the first step, an element moves by $1/\max(2, \alpha)$:
        with a smaller $\alpha$, the first steps are larger. Defaults to 100.0.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $L$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `accumulator_dtype`: the dtype in which $L$, $G$, $R$ and $\theta$ are stored.
        Defaults to `None`, which means the dtype of each parameter, at least float32.
        In bfloat16, a sum of many terms would stop growing.

    **When to use it:** as a baseline with nothing to tune, and for problems with a
    natural scale of one. It holds five numbers per parameter, and a tuned Adam is
    usually better.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{orabona2017training,
            author = {Orabona, Francesco and Tommasi, Tatiana},
            title = {Training Deep Networks without Learning Rates Through Coin
                     Betting},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2017},
        }
        ```
    """

    learning_rate: ScalarOrSchedule = 1.0
    alpha: Positive = 100.0
    eps: ZeroOrMore = 1e-8
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(AddDecayedWeights),
            ScaleByLearningRate(self.learning_rate, flip_sign=False),
            self.part(ScaleByCOCOB),
        )
