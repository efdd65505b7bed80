"""Schedule-Free+: AdamW without a schedule, and with a step size from the loss."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.extra import check_number, required_params
from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, dot, equation, leafwise, sum_over_leaves
from ..._transforms.normalize import ratio
from ..._transforms.scale import recorded
from ..._trees.states import check_state
from ..._types import (
    CountOrZero,
    Leaf,
    Mask,
    Model,
    Nonnegative,
    OpenUnit,
    Params,
    RealScalarLike,
    Recorded,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ..._wrappers.averages.gradient_points import with_average
from ...numerics._numerics import abs_sq, bias_correction, safe_increment, safe_sqrt
from ...tree._like import real_full_like, scalar, wide_copy, wide_zeros_like
from ..moments import root_plus, value_at
from ..recipe import Decays, which_decay


class ScheduleFreePlusState(eqx.Module):
    """The iterate of the optimizer, and the numbers for the average.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `learning_rate`: $\\eta$ of the last step, a 0-d array.
    - `max_lr`: the largest learning rate so far, a 0-d array.
    - `weight_sum`: the sum of the weights of all averaged values so far, a 0-d array.
    - `grad_norm`: the average $a$ of the norms of the gradients, a 0-d array.
    - `beta`: the share of the average in the parameters, a 0-d array.
    - `mu`, `nu`: the moments of the gradients, trees like the parameters.
    - `z`: the iterate, a tree like the parameters.
    """

    count: Int[Array, ""]
    learning_rate: Recorded
    max_lr: Float[Array, ""]
    weight_sum: Float[Array, ""]
    grad_norm: Float[Array, ""]
    beta: Float[Array, ""]
    mu: Updates
    nu: Nonnegative
    z: Params


# The largest step size. Weights and decays, which have its square, stay finite.
_LARGEST_STEP = 1e9


@equation
def norm_and_slope(g: Leaf, z: Leaf, p: Leaf) -> tuple[Scalar, Scalar]:
    modulus = safe_sqrt(abs_sq(g)) if jnp.iscomplexobj(g) else jnp.abs(g)
    return jnp.sum(modulus), dot(g, z - p)  # z - p is beta (z - x), with the old beta


@equation(elementwise=True)
def schedule_free_plus(
    g,
    mu,
    nu,
    z,
    p,
    decays: Decays,
    *,
    b1,
    b2,
    eps,
    mu_correction,
    nu_correction,
    eta,
    c,
    beta,
    next_beta,
    decay,
):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    d = mu / mu_correction / root_plus(nu / nu_correction, eps)
    x = z + (p - z) / beta
    pull = decay * p if decays.is_on else 0
    z = z - pull - eta * d
    x = x + c * (z - x)
    return z + next_beta * (x - z) - p, mu, nu, z


class ScheduleFreePlus(AbstractTransformation):
    r"""AdamW without a schedule, with step sizes computed from the loss.

    !!! abstract "One step"

        $$\begin{aligned}
          a_t &= \beta_p a_{t-1} + (1 - \beta_p) \sqrt{\pi / 2}\; \|g_t\|_1 \\
          \eta_t &= \max(\eta, \varepsilon)\, \frac{\big(f_t + \beta\, \langle g_t,
            z_{t-1} - x_{t-1} \rangle\big)_+}{a_t / (1 - \beta_p^t)} \\
          z_t &= z_{t-1} - \eta_t^2 \lambda\, y_{t-1} - \eta_t\, u_t &
              z_0 &= x_0 = y_0 \\
          x_t &= (1 - c_t)\, x_{t-1} + c_t\, z_t &
            c_t &= \frac{w_t}{\sum_{s < i \le t} w_i}, \quad
            w_t = t^r \max(\varepsilon, \eta_1, \dots, \eta_t)^{\rho} \\
          y_t &= \beta x_t + (1 - \beta)\, z_t
        \end{aligned}$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][], with $\bar\varepsilon = 0$
        and the gradient $g_t$ at $y_{t-1}$. Products and norms are taken over all
        leaves, and $f_t$ is the loss.

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $g_t$ is the gradient. At the start, $a_0 = \mu_0 = \nu_0 = 0$. $\eta$ is
        `learning_rate` (1.0), $\beta_1$ is `b1` (0.9), $\beta_2$ is `b2` (0.95),
        $\varepsilon$ is `eps` (1e-8), $\lambda$ is `weight_decay` (0.0), $\beta$ is
        `beta` (0.9), $\beta_p$ is `polyak_beta` (0.0), $r$ is `weight_power` (0.0),
        $\rho$ is `weight_lr_power` (2.0), $s$ is `average_from` (0).

    $\eta_t$ is at most 1e9. With weight decay, parameters grow without bound if
    gradients are so small that $\eta_t^2 \lambda > 2$. The parameters are $y$: compute
    the gradients there. Evaluate with $x$, that is with `opt.eval_params(state,
    params)`. The loss $f$ must not be negative. `update` and `step` need it as the
    extra argument `value`, and need `params`.

    !!! example

        ```python
        opt = eqopt.ScheduleFreePlus()
        state = opt.init(model)
        value, grads = eqx.filter_value_and_grad(loss_fn)(model)
        model, state = opt.step(grads, state, model, value=value)
        evaluated = opt.eval_params(state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Leave it at 1.
        Defaults to 1.0.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$, the decays of the moments. Default to
        0.9 and 0.95.
    - `eps`: $\varepsilon \ge 0$, outside the root, and also a lower bound of the
        learning rate. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. It is multiplied
        by $\eta_t^2$, so the authors use 20 to 50. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `beta`: $\beta \in (0, 1)$, the share of the average in the parameters. Defaults
        to 0.9.
    - `max_beta`, `anneal_steps`: if `anneal_steps`, an integer of at least 0, is not
        zero, $\beta$ is `beta` in the first step and reaches `max_beta` after this
        number of steps, with a linear $\log(1 - \beta)$. Default to 0.965 and 0.
    - `polyak_beta`: $\beta_p \in [0, 1)$. Defaults to 0.0.
    - `weight_power`: $r \ge 0$. The authors use 2 for long runs. Defaults to 0.0.
    - `weight_lr_power`: $\rho \ge 0$. Defaults to 2.0.
    - `average_from`: $s$, the number of first steps with $c_t = 1$, which are not
        averaged, an integer of at least 0. Defaults to 0.
    - `mu_dtype`, `nu_dtype`, `state_dtype`: the dtypes in which the moments and $z$ are
        stored. Default to `None`, which means the dtype of each parameter, at least
        float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `value`
    or `params` is missing.

    **When to use it:** instead of ScheduleFreeAdamW, if the smallest loss is near zero:
    there is no learning rate to tune and no warm-up. It needs the loss in each step.
    Its authors call their code a reference for research, and claim no results.

    ??? cite "Reference"

        The code of the authors of [`eqopt.ScheduleFree`][], in
        `facebookresearch/schedule_free`: `adamc_schedulefree_plus_paper.py`.

        ```bibtex
        @inproceedings{defazio2024road,
            author = {Defazio, Aaron and Yang, Xingyu Alice and Mehta, Harsh and
                      Mishchenko, Konstantin and Khaled, Ahmed and Cutkosky, Ashok},
            title = {The Road Less Scheduled},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    _loads = "nothing"
    _descends = True

    learning_rate: ScalarOrSchedule = 1.0
    b1: Unit = 0.9
    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    beta: OpenUnit = 0.9
    max_beta: OpenUnit = 0.965
    anneal_steps: CountOrZero = 0
    polyak_beta: Unit = 0.0
    weight_power: ZeroOrMore = 0.0
    weight_lr_power: ZeroOrMore = 2.0
    average_from: CountOrZero = 0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScheduleFreePlusState:
        names = "learning_rate", "max_lr", "weight_sum", "grad_norm"
        return ScheduleFreePlusState(
            count=jnp.zeros((), jnp.int32),
            beta=scalar(self.beta, params),
            mu=wide_zeros_like(params, self.mu_dtype),
            nu=real_full_like(params, 0, self.nu_dtype),
            z=wide_copy(params, self.state_dtype),
            **{name: scalar(0, params) for name in names},
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average, $x$.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        check_state(self, state)
        return with_average(state, params, state.beta)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(params)
        check_number("value", value)
        dtype, t = state.max_lr.dtype, safe_increment(state.count)
        now = lambda name: value_at(self, name, state.count, state.max_lr)
        sums = sum_over_leaves(norm_and_slope, updates, {"z": state.z, "p": params})
        norm, slope, value = (jnp.asarray(x, dtype) for x in (*sums, value))
        beta, decay, eps = self._beta(state), now("polyak_beta"), now("eps")
        a = decay * state.grad_norm + (1 - decay) * math.sqrt(math.pi / 2) * norm
        gap = jnp.maximum(value + slope * beta / state.beta, 0)
        eta = ratio(gap, a / bias_correction(decay, t))
        eta = jnp.maximum(now("learning_rate"), eps) * eta
        eta = jnp.minimum(eta, _LARGEST_STEP)
        max_lr = jnp.maximum(jnp.maximum(state.max_lr, eps), eta)
        w = t.astype(dtype) ** now("weight_power") * max_lr ** now("weight_lr_power")
        is_early = t <= jnp.asarray(self.average_from, t.dtype)
        weight_sum = state.weight_sum + jnp.where(is_early, 0, w)
        updates, mu, nu, z = leafwise(
            schedule_free_plus,
            updates,
            state.mu,
            state.nu,
            state.z,
            reads={"p": params, "decays": which_decay(self.mask, params)},
            b1=self.b1,
            b2=self.b2,
            eps=self.eps,
            mu_correction=bias_correction(self.b1, t),
            nu_correction=bias_correction(self.b2, t),
            eta=eta,
            c=jnp.where(is_early, 1, ratio(w, weight_sum)),
            beta=state.beta,
            next_beta=beta,
            decay=eta**2 * now("weight_decay"),
        )
        return updates, ScheduleFreePlusState(
            count=t,
            learning_rate=recorded(eta, state.learning_rate),
            max_lr=max_lr,
            weight_sum=weight_sum,
            grad_norm=a,
            beta=beta,
            mu=mu,
            nu=nu,
            z=z,
        )

    def _beta(self, state: ScheduleFreePlusState) -> Scalar:
        now = lambda name: value_at(self, name, state.count, state.beta)
        if isinstance(self.anneal_steps, int) and self.anneal_steps == 0:
            return recorded(now("beta"), state.beta)
        first, last = now("beta"), now("max_beta")
        steps = jnp.asarray(self.anneal_steps, first.dtype)
        part = jnp.clip(ratio(state.count.astype(first.dtype), steps), 0, 1)
        annealed = 1 - (1 - first) ** (1 - part) * (1 - last) ** part
        return jnp.where(steps == 0, first, annealed)
