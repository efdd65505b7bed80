"""Prodigy: Adam with an estimate of the distance to the solution."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._core import (
    AbstractTransformation,
    equation,
    leafwise,
    rounded_like,
    sum_over_leaves,
    widened,
)
from ..._transforms.normalize import ratio
from ..._transforms.scale import recorded
from ..._trees.leaves import restrict
from ..._trees.states import check_state
from ..._types import (
    ClosedUnit,
    Hyperparameter,
    Leaf,
    Mask,
    Nonnegative,
    Params,
    Positive,
    Recorded,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_increment, safe_sqrt
from ...tree._like import copy, real_full_like, scalar, wide_zeros_like
from ..moments import corrected_step, root_plus
from ..recipe import WeightDecay, add_decay, decay_of


class ProdigyState(eqx.Module):
    """The moments, the initial parameters, and the estimate of their distance.

    **Attributes:**

    - `exp_avg`: the first moment of the gradients, multiplied by the estimates.
    - `exp_avg_sq`: the second moment, real also for complex parameters.
    - `grad_sum`: the weighted sum of the gradients.
    - `params0`: the parameters passed to `init`.
    - `estim_lr`: the estimate of the distance, a 0-d array. It never decreases.
    - `numerator_weighted`: the numerator of the estimate, a 0-d array.
    - `count`: the steps taken so far, a 0-d int32 array.
    - `learning_rate`: the learning rate of the last step, including the estimate and
        the bias corrections (before the first step, the learning rate for it), a 0-d
        array.
    """

    exp_avg: Updates
    exp_avg_sq: Nonnegative
    grad_sum: Updates
    params0: Params
    estim_lr: Float[Array, ""]
    numerator_weighted: Float[Array, ""]
    count: Int[Array, ""]
    learning_rate: Recorded


@equation(elementwise=True)
def weighted_sum(g, grad_sum, *, b3, weight):
    return g, b3 * grad_sum + weight * g


@equation
def progress(g: Leaf, params0: Leaf, p: Leaf) -> Scalar:
    return (jnp.conj(g) * (params0 - p)).real.sum()


@equation
def size(grad_sum: Leaf) -> Scalar:
    return jnp.abs(grad_sum).sum()


@equation(elementwise=True)
def prodigy(g, exp_avg, exp_avg_sq, *, b1, b2, d, step, eps):
    exp_avg = b1 * exp_avg + (1 - b1) * d * g
    exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * d**2 * abs_sq(g)
    update = -step * exp_avg / root_plus(exp_avg_sq, eps)
    return update, exp_avg, exp_avg_sq


class Prodigy(AbstractTransformation):
    r"""Prodigy: AdamW that finds its learning rate by itself.

    !!! abstract "One step"

        $$\begin{aligned}
          m_t &= \beta_1 m_{t-1} + (1 - \beta_1)\, d_{t-1}\, g_t &
          r_t &= \beta_3 r_{t-1} + w_t\,
            \operatorname{Re} \langle g_t, p_0 - p_{t-1} \rangle \\
          v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, d_{t-1}^2\, |g_t|^2 &
          s_t &= \beta_3 s_{t-1} + w_t\, g_t \\
          \gamma_t &= d_{t-1}\, \eta_t\, \sqrt{1 - \beta_2^t} \big/ (1 - \beta_1^t) &
          d_t &= \max\big(d_{t-1},\; c\, r_t \big/ \|s_t\|_1\big) \\
          w_t &= d_{t-1}\, \gamma_t / d_0 &
          p_t &= p_{t-1} - \gamma_t \big(m_t \big/ (\sqrt{v_t} + d_t\, \varepsilon)
            + \lambda\, p_{t-1}\big)
        \end{aligned}$$

        with scalar products and norms over all leaves.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = r_0 = v_0 = s_0 = 0$. $\eta$ is `learning_rate` (1.0), $\beta_1$ is `b1`
        (0.9), $\beta_2$ is `b2` (0.999), $\beta_3$ is `b3`, $\varepsilon$ is `eps`
        (1e-8), $d_0$ is `estim_lr0` (1e-6), $c$ is `estim_lr_coef` (1.0), $\lambda$ is
        `weight_decay` (0.0).

    `eqopt.tree.get(state, "learning_rate")` returns the current learning rate,
    $\gamma_t$; with `"estim_lr"`, it returns $d_t$. While $s_t$ is zero, for example in
    a warm-up from zero, $d$ stays unchanged.

    !!! example

        ```python
        opt = eqopt.Prodigy()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Leave a number at 1;
        a schedule should have a peak of 1. Defaults to 1.0.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$, the decays of the moments. Default to
        0.9 and 0.999.
    - `b3`: $\beta_3 \in [0, 1]$, the decay in the estimate. Defaults to `None`, which
        means $\sqrt{\beta_2}$.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `estim_lr0`: $d_0 > 0$, the initial estimate. Choose it well below the expected
        distance. Defaults to 1e-6.
    - `estim_lr_coef`: $c$, a number or a 0-d array. If steps are too large or too
        small, change this argument. Defaults to 1.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. It is multiplied by $\gamma_t$.
        Defaults to 0.0.
    - `safeguard_warmup`: whether to use $d_{t-1}^2 / d_0$ as the $w_t$ in $s_t$, so
        that a warm-up does not make the estimate too large. Defaults to `False`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $m$ is stored. Defaults to `None`, which means the
        dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype in which $v$ and $s$ are stored. Defaults to `None`, which
        means the dtype of each parameter, at least float32. Both are slow means, which
        would stand still in half precision.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    **When to use it:** instead of AdamW, if you cannot afford to tune the learning
    rate, as for fine-tuning. It takes more memory: two further copies of the
    parameters. Use a schedule that decays to zero.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{mishchenko2024prodigy,
            author = {Mishchenko, Konstantin and Defazio, Aaron},
            title = {Prodigy: An Expeditiously Adaptive Parameter-Free Learner},
            booktitle = {International Conference on Machine Learning},
            year = {2024},
        }
        ```
    """

    _loads = "nothing"
    _descends = True

    # Differs from Optax in: 0 / 0 does not count as an estimate. In Optax, a gradient
    # or a learning rate of zero in the first step makes everything NaN. The authors'
    # code skips the step.

    learning_rate: ScalarOrSchedule = 1.0
    b1: Unit = 0.9
    b2: Unit = 0.999
    b3: ClosedUnit | None = None
    eps: ZeroOrMore = 1e-8
    estim_lr0: Positive = 1e-6
    estim_lr_coef: Hyperparameter = 1.0
    weight_decay: WeightDecay = 0.0
    safeguard_warmup: bool = False
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        decay_of(self)  # raises an error if it cannot be one

    def init(self, params: Params) -> ProdigyState:
        count, estim_lr = jnp.zeros((), jnp.int32), scalar(self.estim_lr0, params)
        return ProdigyState(
            exp_avg=wide_zeros_like(params, self.mu_dtype),
            exp_avg_sq=real_full_like(params, 0, self.nu_dtype),
            grad_sum=wide_zeros_like(params, self.nu_dtype),
            params0=copy(params),
            estim_lr=estim_lr,
            numerator_weighted=scalar(0, params),
            count=count,
            learning_rate=corrected_step(self, estim_lr, count),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(params)
        d, count = state.estim_lr, state.count
        now = lambda value: jnp.asarray(value, d.dtype)
        step = corrected_step(self, d, count)
        b3 = safe_sqrt(now(self.b2)) if self.b3 is None else now(self.b3)
        growth = d / now(self.estim_lr0)
        weight = growth * (d if self.safeguard_warmup else step)
        reads = {"params0": state.params0, "p": params}
        (gain,) = sum_over_leaves(progress, updates, reads)
        # Stored first, then read: computing the sum from g and s again would read one
        # more array.
        _, grad_sum = leafwise(
            weighted_sum, updates, state.grad_sum, b3=b3, weight=weight
        )
        # A leaf without an update counts neither here nor in the gain.
        (norm,) = sum_over_leaves(size, restrict(grad_sum, updates, "state.grad_sum"))
        numerator = b3 * state.numerator_weighted + growth * step * now(gain)
        estimate = ratio(now(self.estim_lr_coef) * numerator, now(norm))
        estim_lr = jnp.maximum(d, estimate)
        u, exp_avg, exp_avg_sq = leafwise(
            prodigy,
            widened(updates),
            state.exp_avg,
            state.exp_avg_sq,
            b1=self.b1,
            b2=self.b2,
            d=d,
            step=step,
            eps=estim_lr * now(self.eps),
        )
        new = ProdigyState(
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            grad_sum=grad_sum,
            params0=state.params0,
            estim_lr=estim_lr,
            numerator_weighted=numerator,
            count=safe_increment(count),
            learning_rate=recorded(step, state.learning_rate),
        )
        return rounded_like(add_decay(self, u, params, step, count), updates), new
