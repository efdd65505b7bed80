"""Sophia: momentum, divided by an estimate of the curvature and clipped."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.checks import check_needs
from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, equation, leafwise, sum_over_leaves
from ..._transforms.clip import clip
from ..._transforms.hutchinson import HutchinsonDiagHessian
from ..._trees.control import filter_cond
from ..._trees.leaves import restrict
from ..._trees.states import check_state
from ..._types import (
    Count,
    Leaf,
    Mask,
    Params,
    RealLeaf,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import bias_correction, safe_increment
from ..moments import AbstractMomentsState, init_moments, or_tiny
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class SophiaState(AbstractMomentsState):
    """The momentum and the curvature.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters.
    - `nu`: the mean of the estimates of the Hessian's diagonal, real also for complex
        parameters.
    - `hessian_state`: the state of the transformation that estimates the Hessian.
    - `win_rate`: the share of the coordinates that were not clipped in the last step, a
        0-d float32 array; `None` without `track_win_rate`.
    """

    nu: Updates  # of either sign
    hessian_state: State
    win_rate: Float[Array, ""] | None


@equation(elementwise=True)
def sophia(g, mu, nu, *, b1, eps, gamma, clip_threshold, mu_correction):
    mu = (1 - b1) * g + b1 * mu
    u = (mu / mu_correction) / jnp.maximum(gamma * nu, or_tiny(eps))
    if clip_threshold is not None:
        u = clip(u, max_delta=clip_threshold)
    return u, mu


@equation(elementwise=True)
def average(h, nu, *, b2):
    return h, (1 - b2) * h.real + b2 * nu


@equation
def wins(
    mu: Leaf, nu: RealLeaf, *, eps, gamma, clip_threshold, mu_correction
) -> tuple[Scalar, Scalar]:
    size = jnp.abs(mu / mu_correction) / jnp.maximum(gamma * nu, or_tiny(eps))
    return jnp.sum(size < clip_threshold, dtype=nu.dtype), jnp.sum(jnp.ones_like(nu))


class ScaleBySophia(AbstractTransformation):
    """[`eqopt.Sophia`][] without weight decay and learning rate."""

    _loads = "nothing"

    b1: Unit = 0.965
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    gamma: ZeroOrMore = 0.01
    clip_threshold: ZeroOrMore | None = 1.0
    update_interval: Count = 10
    hessian_diagonal_fn: AbstractTransformation = HutchinsonDiagHessian()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    track_win_rate: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        is_met = not self.track_win_rate or self.clip_threshold is not None
        check_needs("track_win_rate", "clip_threshold", is_met)

    def init(self, params: Params) -> SophiaState:
        return init_moments(
            self,
            SophiaState,
            params,
            hessian_state=self.hessian_diagonal_fn.init(params),
            win_rate=jnp.zeros((), jnp.float32) if self.track_win_rate else None,
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        nu, hessian_state = filter_cond(
            state.count % jnp.asarray(self.update_interval, jnp.int32) == 0,
            lambda: self._estimated(updates, state, params, extra),
            lambda: (state.nu, state.hessian_state),
        )
        count, reads = safe_increment(state.count), {"nu": state.nu}
        names = "eps", "gamma", "clip_threshold"
        shared = {name: getattr(self, name) for name in names}
        shared["mu_correction"] = bias_correction(self.b1, count)
        new, mu = leafwise(sophia, updates, state.mu, reads=reads, b1=self.b1, **shared)
        win_rate = None
        if self.track_win_rate:
            of_updates = restrict(mu, updates, "state.mu")
            unclipped, total = sum_over_leaves(wins, of_updates, reads, shared)
            win_rate = (unclipped / jnp.maximum(total, 1)).astype(jnp.float32)
        return new, SophiaState(count, mu, nu, hessian_state, win_rate)

    def _estimated(self, grads, state, params, extra):
        """The curvature with a new estimate, and the state of the estimator."""
        estimate, hessian_state = self.hessian_diagonal_fn.update(
            grads, state.hessian_state, params, **extra
        )
        _, nu = leafwise(average, estimate, state.nu, b2=self.b2)
        return nu, hessian_state


class Sophia(AbstractRecipe):
    r"""Sophia: momentum over curvature, clipped.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
          u_t &= \operatorname{clip}\Big(\frac{\mu_t / (1 - \beta_1^t)}
            {\max(\gamma\, \nu_{t-1}, \varepsilon)}, \rho\Big) \\
          p_t &= p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, \hat h_t
            \quad\text{in steps } 1, k + 1, 2k + 1, \dots; \text{ else } \nu_{t-1},
        \end{aligned}$$

        where $\hat h_t$ estimates the diagonal of the Hessian at $p_{t-1}$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.965),
        $\beta_2$ is `b2` (0.99), $\varepsilon$ is `eps` (1e-8), $\lambda$ is
        `weight_decay` (0.0001), $\gamma$ is `gamma` (0.01), $\rho$ is `clip_threshold`
        (1.0), $k$ is `update_interval` (10).

    The estimate is only computed in those steps. Where the curvature is small,
    negative, or not known yet, the update is clipped, so it becomes the sign of the
    momentum times $\rho$.

    `step` and `update` need the extra arguments of the estimate by name in *every*
    step. By default, this is the loss as a function of the model, `value_fn`.

    As in Optax and in the authors' code, an estimate is used from the next step on. In
    the paper, it is used immediately, and the bias of $\mu_t$ is not corrected.

    !!! example

        ```python
        opt = eqopt.Sophia(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model, value_fn=loss_fn)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.965.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the curvature, from estimate to estimate.
        Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$, a lower bound of the divisor. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0001.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `gamma`: $\gamma \ge 0$, the factor of the curvature. The authors tune it so that
        the win rate is between 0.1 and 0.5. Defaults to 0.01.
    - `clip_threshold`: $\rho \ge 0$, or `None` for no clipping. Defaults to 1.0.
    - `update_interval`: $k \ge 1$, an integer. Defaults to 10.
    - `hessian_diagonal_fn`: the transformation that turns gradients into an estimate of
        the Hessian's diagonal. It gets all extra arguments. Defaults to
        `eqopt.HutchinsonDiagHessian()`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `track_win_rate`: whether to record the share of coordinates that were not
        clipped, for `eqopt.tree.get(state, "win_rate")`. This takes some time. Defaults
        to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    **When to use it:** to pretrain language models, if you can write the loss as a
    function of the model in each step. It pays off if the estimates are rare. Tune
    `gamma` by the win rate.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{liu2024sophia,
            author = {Liu, Hong and Li, Zhiyuan and Hall, David and Liang, Percy and
                      Ma, Tengyu},
            title = {Sophia: A Scalable Stochastic Second-order Optimizer for Language
                     Model Pre-training},
            booktitle = {International Conference on Learning Representations},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.965
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 1e-4
    mask: Mask | None = static_choice(default=None)
    gamma: ZeroOrMore = 0.01
    clip_threshold: ZeroOrMore | None = 1.0
    update_interval: Count = 10
    hessian_diagonal_fn: AbstractTransformation = HutchinsonDiagHessian()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    track_win_rate: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleBySophia, AddDecayedWeights, ScaleByLearningRate
