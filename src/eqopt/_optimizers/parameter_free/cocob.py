"""COCOB: each element bets on its own gradients, and needs no learning rate."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._checks import check_range
from ..._combinators.chain import Chain
from ..._cpu import equations as on_cpu
from ..._equations import equation
from ..._fields import static_choice
from ..._pipeline import Leafwise
from ..._transformation import AbstractLeafwise, AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights
from ..._types import (
    Hyperparameter,
    Mask,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Updates,
)
from ...tree import zeros_like
from ...tree._like import copy, real_full_like


class ScaleByCOCOBState(eqx.Module):
    """The books of the gamblers. All but the first two are real.

    **Attributes:**

    - `init_particles`: the parameters at the start, $p_0$.
    - `cumulative_gradients`: the sum of the negative gradients, $\\theta$.
    - `scale`: the largest gradient so far, $L$.
    - `subgradients`: the sum of the moduli of the gradients, $G$.
    - `reward`: what was won so far, $R$.
    """

    init_particles: Params
    cumulative_gradients: Updates
    scale: Nonnegative
    subgradients: Nonnegative
    reward: Nonnegative


@equation
def cocob(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    init_particles: Inexact[Array, "*leaf"],
    cumulative_gradients: Inexact[Array, "*leaf"],
    scale: Float[Array, "*leaf"],
    subgradients: Float[Array, "*leaf"],
    reward: Float[Array, "*leaf"],
    *,
    alpha: Float[Array, ""],
    eps: Float[Array, ""],
) -> tuple[
    Inexact[Array, "*leaf"],
    Inexact[Array, "*leaf"],
    Float[Array, "*leaf"],
    Float[Array, "*leaf"],
    Float[Array, "*leaf"],
]:
    theta = cumulative_gradients - g
    scale = jnp.maximum(jnp.maximum(scale, jnp.abs(g)), eps)
    subgradients = subgradients + jnp.abs(g)
    reward = jnp.maximum(reward - (g.conj() * (p - init_particles)).real, 0)
    # Nothing was bet if all gradients were zero.
    safe_scale = jnp.where(scale > 0, scale, 1)
    fraction = theta / jnp.maximum(subgradients + safe_scale, alpha * safe_scale)
    bet = fraction * (1 + reward / safe_scale)
    return init_particles + bet - p, theta, scale, subgradients, reward


class ScaleByCOCOB(AbstractLeafwise):
    r"""Bets on the next gradient what was won on those before.

    $$\begin{aligned}
      L_t &= \max(L_{t-1}, |g_t|, \varepsilon) &
      R_t &= \max(R_{t-1} - g_t\, (p_{t-1} - p_0),\ 0) \\
      G_t &= G_{t-1} + |g_t| &
      \theta_t &= \theta_{t-1} - g_t \\
      p_t &= p_0 + \frac{\theta_t\, (L_t + R_t)}{L_t \max(G_t + L_t, \alpha L_t)} &
      u_t &= p_t - p_{t-1}
    \end{aligned}$$

    The update points downhill already: nothing comes after it, and `params` are needed.
    If all gradients are multiplied by one number, nothing changes.

    **Arguments:**

    - `alpha`: $\alpha > 0$. In the first step an element moves by $1/\alpha$, and the
        smaller $\alpha$ is the bolder are the first bets.
    - `eps`: $\varepsilon \ge 0$, the least that a gradient counts for in $L$.
    - `accumulator_dtype`: the dtype in which $L$, $G$, $R$ and $\theta$ are stored.
        Defaults to the dtype of each parameter, but take float32 for half-precision
        parameters: a sum of many terms in bfloat16 stops growing.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or `params` is `None`.

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

    alpha: Hyperparameter = 100.0
    eps: Hyperparameter = 1e-8
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "alpha", 0, includes_low=False)
        check_range(self, "eps", 0)

    def init(self, params: Params) -> ScaleByCOCOBState:
        zeros = lambda: real_full_like(params, 0, self.accumulator_dtype)
        return ScaleByCOCOBState(
            init_particles=copy(params),
            cumulative_gradients=zeros_like(params, self.accumulator_dtype),
            scale=zeros(),
            subgradients=zeros(),
            reward=zeros(),
        )

    def leafwise(
        self, state: ScaleByCOCOBState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"init_particles": state.init_particles}
        return Leafwise(cocob, state, reads=reads, on_cpu=on_cpu.cocob)


class COCOB(AbstractOptimizer):
    r"""COCOB: gradient descent by coin betting, without a learning rate to tune.

    $$p_t = p_{t-1} + u_t,$$

    where $u_t$ is the update of [`eqopt.ScaleByCOCOB`][], which has the equations and the
    reference, for the gradient $\eta_t\, (g_t + \lambda p_{t-1})$. The weight decay is an
    $L^2$ penalty.

    **Arguments:**

    - `learning_rate`: $\eta$, how much each gradient counts: a number, a 0-d array or a
        schedule. A constant one is of no effect, because the scale of the gradients
        is of none.
    - `alpha`, `eps`, `accumulator_dtype`: see [`eqopt.ScaleByCOCOB`][].
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule.
    - `mask`: see [`eqopt.AddDecayedWeights`][].
    """

    learning_rate: ScalarOrSchedule = 1.0
    alpha: Hyperparameter = 100.0
    eps: Hyperparameter = 1e-8
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
