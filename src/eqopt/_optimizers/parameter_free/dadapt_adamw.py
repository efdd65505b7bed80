"""D-Adaptation: Adam with a lower bound on the distance to the solution."""

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
from ..._trees.states import check_state
from ..._types import (
    Leaf,
    Mask,
    Nonnegative,
    Params,
    Positive,
    RealLeaf,
    Recorded,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_increment, safe_sqrt
from ...tree._like import real_full_like, scalar, wide_zeros_like
from ..moments import corrected_step, root_plus
from ..recipe import WeightDecay, add_decay, decay_of


class DAdaptAdamWState(eqx.Module):
    """The moments, and a bound on the initial distance to the solution.

    **Attributes:**

    - `exp_avg`: the first moment of the gradients times the current learning rate.
    - `exp_avg_sq`: the second moment, real also for complex parameters.
    - `grad_sum`: a slower mean of the gradients times the current learning rate.
    - `estim_lr`: the bound on the distance, a 0-d array. It never decreases.
    - `numerator_weighted`: the numerator of the bound, a 0-d array.
    - `count`: the steps taken so far, a 0-d int32 array.
    - `learning_rate`: the learning rate of the last step, including the bound and the
        bias corrections (before the first step, the learning rate for it), a 0-d array.
    """

    exp_avg: Updates
    exp_avg_sq: Nonnegative
    grad_sum: Updates
    estim_lr: Float[Array, ""]
    numerator_weighted: Float[Array, ""]
    count: Int[Array, ""]
    learning_rate: Recorded


@equation
def dadapt_adamw_sums(
    g: Leaf, exp_avg_sq: RealLeaf, grad_sum: Leaf, *, b3, step, eps
) -> tuple[Scalar, Scalar]:
    direction = grad_sum / root_plus(exp_avg_sq, eps)
    grad_sum = b3 * grad_sum + (1 - b3) * step * g
    return (jnp.conj(g) * direction).real.sum(), jnp.abs(grad_sum).sum()


@equation(elementwise=True)
def dadapt_adamw(g, exp_avg, exp_avg_sq, grad_sum, *, b1, b2, b3, step, eps):
    exp_avg = b1 * exp_avg + (1 - b1) * step * g
    exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * abs_sq(g)
    grad_sum = b3 * grad_sum + (1 - b3) * step * g
    return -exp_avg / root_plus(exp_avg_sq, eps), exp_avg, exp_avg_sq, grad_sum


class DAdaptAdamW(AbstractTransformation):
    r"""D-Adaptation: AdamW that finds its learning rate by itself.

    !!! abstract "One step"

        With $\beta_3 = \sqrt{\beta_2}$,

        $$\begin{aligned}
          m_t &= \beta_1 m_{t-1} + (1 - \beta_1)\, \gamma_t\, g_t &
          r_t &= \beta_3 r_{t-1} + (1 - \beta_3)\, \gamma_t \operatorname{Re}
            \big\langle g_t,\, s_{t-1} \big/
                (\sqrt{v_{t-1}} + \varepsilon) \big\rangle \\
          v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          s_t &= \beta_3 s_{t-1} + (1 - \beta_3)\, \gamma_t\, g_t \\
          \gamma_t &= d_{t-1}\, \eta_t\, \sqrt{1 - \beta_2^t} \big/ (1 - \beta_1^t) &
          d_t &= \max\big(d_{t-1},\; r_t \big/ ((1 - \beta_3)\, \|s_t\|_1)\big) \\
          && p_t &= p_{t-1} - m_t \big/ (\sqrt{v_t} + \varepsilon)
            - \gamma_t\, \lambda\, p_{t-1}
        \end{aligned}$$

        with scalar products and norms over all leaves.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = r_0 = s_0 = v_0 = 0$. $\eta$ is `learning_rate` (1.0), $\beta_1$ is `b1`
        (0.9), $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $d_0$ is
        `estim_lr0` (1e-6), $\lambda$ is `weight_decay` (0.0).

    `eqopt.tree.get(state, "learning_rate")` returns the current learning rate,
    $\gamma_t$; with `"estim_lr"`, it returns $d_t$. While $s_t$ is zero, for example in
    a warm-up from zero, $d$ stays unchanged.

    !!! example

        ```python
        opt = eqopt.DAdaptAdamW()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Leave a number at 1;
        a schedule should have a peak of 1. Defaults to 1.0.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$, the decays of the moments. Default to
        0.9 and 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `estim_lr0`: $d_0 > 0$, the initial bound. Choose it well below the expected
        distance. Defaults to 1e-6.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. It is multiplied by $\gamma_t$.
        Defaults to 0.0.
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

    **When to use it:** rarely. Prodigy comes from the same authors and finds the
    learning rate faster. D-Adaptation needs one copy of the parameters less.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{defazio2023dadaptation,
            author = {Defazio, Aaron and Mishchenko, Konstantin},
            title = {Learning-Rate-Free Learning by D-Adaptation},
            booktitle = {International Conference on Machine Learning},
            year = {2023},
        }
        ```
    """

    _loads = "nothing"
    _descends = True

    # Differs from Optax in: 0 / 0 does not count as a bound, as in `Prodigy`.

    learning_rate: ScalarOrSchedule = 1.0
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    estim_lr0: Positive = 1e-6
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        decay_of(self)  # raises an error if it cannot be one

    def init(self, params: Params) -> DAdaptAdamWState:
        count, estim_lr = jnp.zeros((), jnp.int32), scalar(self.estim_lr0, params)
        return DAdaptAdamWState(
            exp_avg=wide_zeros_like(params, self.mu_dtype),
            exp_avg_sq=real_full_like(params, 0, self.nu_dtype),
            grad_sum=wide_zeros_like(params, self.nu_dtype),
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
        step, b3 = corrected_step(self, d, count), safe_sqrt(now(self.b2))
        shared: dict[str, Any] = {"b3": b3, "step": step, "eps": self.eps}
        reads = {"exp_avg_sq": state.exp_avg_sq, "grad_sum": state.grad_sum}
        progress, norm = sum_over_leaves(
            dadapt_adamw_sums, updates, reads, shared, in_own_pass=True
        )
        numerator = b3 * state.numerator_weighted + (1 - b3) * step * now(progress)
        estimate = ratio(numerator, (1 - b3) * now(norm))
        u, exp_avg, exp_avg_sq, grad_sum = leafwise(
            dadapt_adamw,
            widened(updates),
            state.exp_avg,
            state.exp_avg_sq,
            state.grad_sum,
            b1=self.b1,
            b2=self.b2,
            **shared,
        )
        new = DAdaptAdamWState(
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            grad_sum=grad_sum,
            estim_lr=jnp.maximum(d, estimate),
            numerator_weighted=numerator,
            count=safe_increment(count),
            learning_rate=recorded(step, state.learning_rate),
        )
        return rounded_like(add_decay(self, u, params, step, count), updates), new
