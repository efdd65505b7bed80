"""Adan: momentum of the gradients, and of their differences."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate, at, same
from ..._transforms.weight_decay import is_off
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_increment
from ...tree._like import real_full_like, wide_zeros_like, zeros_like
from ..moments import counted, root_plus
from ..recipe import AbstractRecipe


class ScaleByAdanState(eqx.Module):
    """The moments of the gradients and of their differences.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `m`: the mean of the gradients, a tree like the parameters.
    - `v`: the mean of the differences of successive gradients, a tree like the
        parameters.
    - `n`: the second moment, real also for complex parameters.
    - `previous_gradient`: the gradients of the last step.
    """

    count: Int[Array, ""]
    m: Updates
    v: Updates
    n: Nonnegative
    previous_gradient: Updates


# Differs from Optax 0.2.8 in:
# 1. The weight of the differences is `b2` in `n` and in the update, not `1 - b2`. The
#    paper's beta_2 is `1 - b2` here; Optax converted the mean `v`, but not these two.
# 2. Weight decay is proximal, see `ProximalDecay`.
# 3. `eps_root` is zero by default, because the paper does not have it.
@equation(elementwise=True)
def adan(
    g,
    m,
    v,
    n,
    previous_gradient,
    *,
    b1,
    b2,
    b3,
    eps,
    eps_root,
    m_correction,
    v_correction,
    n_correction,
    is_first,
):
    difference = jnp.where(is_first, 0, g - previous_gradient)
    m = (1 - b1) * g + b1 * m
    v = (1 - b2) * difference + b2 * v
    n = (1 - b3) * abs_sq(g + b2 * difference) + b3 * n
    direction = m / m_correction + b2 * (v / v_correction)
    u = direction / root_plus(n / n_correction + eps_root, eps)
    return u, m, v, n, g


class ScaleByAdan(AbstractLeafwise):
    r"""Adaptive Nesterov momentum, without the gradient at a second point.

    $$\begin{aligned}
      m_t &= \beta_1 m_{t-1} + (1 - \beta_1)\, g_t \\
      v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, (g_t - g_{t-1}) \\
      n_t &= \beta_3 n_{t-1} + (1 - \beta_3)\, |g_t + \beta_2 (g_t - g_{t-1})|^2 \\
      u_t &= \Big(\frac{m_t}{1 - \beta_1^t} + \beta_2 \frac{v_t}{1 - \beta_2^t}\Big)
        \bigg/ \bigg(\sqrt{\frac{n_t}{1 - \beta_3^t} + \bar\varepsilon}
        + \varepsilon\bigg)
    \end{aligned}$$

    where $g_0 = g_1$, so the difference is zero in the first step.

    Each $\beta$ is a decay, as in the reference code. In the paper, it is the weight of
    the new value, $1 - \beta$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean of the gradients. Defaults to
        0.98.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the mean of their differences. Defaults
        to 0.92.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the second moment. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. The paper does not have it.
        Derivatives through the step are also finite without it. Defaults to 0.0.
    - `mu_dtype`: the dtype in which $m$, $v$ and the last gradient are stored. Defaults
        to the dtype of each parameter, at least float32 for $m$ and $v$.
    - `nu_dtype`: the dtype in which $n$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{xie2024adan,
            author = {Xie, Xingyu and Zhou, Pan and Li, Huan and Lin, Zhouchen and
                      Yan, Shuicheng},
            title = {Adan: Adaptive {N}esterov Momentum Algorithm for Faster Optimizing
                     Deep Models},
            journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
            year = {2024},
        }
        ```
    """

    _stores_in_turn = True

    b1: Unit = 0.98
    b2: Unit = 0.92
    b3: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdanState:
        return ScaleByAdanState(
            count=jnp.zeros((), jnp.int32),
            m=wide_zeros_like(params, self.mu_dtype),
            v=wide_zeros_like(params, self.mu_dtype),
            n=real_full_like(params, 0, self.nu_dtype),
            # A copy of a gradient is exact in the dtype of the parameter.
            previous_gradient=zeros_like(params, self.mu_dtype),
        )

    def leafwise(
        self, state: ScaleByAdanState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, adan, state, is_first=state.count == 0)


class ProximalDecayState(eqx.Module):
    """`count`: the steps taken so far, a 0-d int32 array."""

    count: Int[Array, ""]


@equation(elementwise=True)
def decay_proximally(g, p, *, learning_rate, weight_decay):
    return (g + weight_decay * p) / (1 + learning_rate * weight_decay)


class ProximalDecay(AbstractLeafwise):
    r"""Weight decay by a proximal step.

    Applied before the learning rate, $u = (g + \lambda p) / (1 + \eta\lambda)$ leads to
    $p - \eta u = (p - \eta g) / (1 + \eta\lambda)$.
    """

    learning_rate: ScalarOrSchedule
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)

    def init(self, params: Params) -> ProximalDecayState:
        return ProximalDecayState(count=jnp.zeros((), jnp.int32))

    def leafwise(
        self, state: ProximalDecayState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        names = "weight_decay", "learning_rate"
        shared = {name: at(self, name, state.count) for name in names}
        state = ProximalDecayState(safe_increment(state.count))
        if is_off(shared["weight_decay"]):
            return Leafwise(same, state)
        return Leafwise(decay_proximally, state, shared, mask=self.mask)


class Adan(AbstractRecipe):
    r"""Adan: adaptive Nesterov momentum.

    !!! abstract "One step"

        $$\begin{aligned}
          m_t &= \beta_1 m_{t-1} + (1 - \beta_1)\, g_t \\
          v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, (g_t - g_{t-1}) \\
          n_t &= \beta_3 n_{t-1} + (1 - \beta_3)\, |g_t + \beta_2 (g_t - g_{t-1})|^2 \\
          u_t &= \Big(\frac{m_t}{1 - \beta_1^t} + \beta_2 \frac{v_t}{1 - \beta_2^t}\Big)
            \bigg/ \bigg(\sqrt{\frac{n_t}{1 - \beta_3^t} + \bar\varepsilon}
            + \varepsilon\bigg)
        \end{aligned}$$

        where $g_0 = g_1$, so the difference is zero in the first step.

        $$p_t = \frac{p_{t-1} - \eta_t\, u_t}{1 + \eta_t \lambda_t},$$

        where $u_t$ is the update of [`eqopt.ScaleByAdan`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = v_0 = n_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.98),
        $\beta_2$ is `b2` (0.92), $\beta_3$ is `b3` (0.99), $\varepsilon$ is `eps`
        (1e-8), $\bar\varepsilon$ is `eps_root` (0.0), $\lambda$ is `weight_decay`
        (0.0).

    The weight decay is a proximal step, as in the paper: it follows the update and
    never changes the sign of a parameter.

    !!! example

        ```python
        opt = eqopt.Adan(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean of the gradients. Defaults to
        0.98.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the mean of their differences. Defaults
        to 0.92.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the second moment. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. The paper does not have it.
        Derivatives through the step are also finite without it. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $m$, $v$ and the last gradient are stored. Defaults
        to `None`, which means the dtype of each parameter, at least float32 for $m$ and
        $v$.
    - `nu_dtype`: the dtype in which $n$ is stored. Defaults to `None`, which means the
        dtype of each parameter, at least float32.

    **When to use it:** where AdamW works and you can afford two more copies of the
    parameters, especially for vision transformers and large batches. Use learning rates
    several times larger than for AdamW.

    ??? cite "Reference"

        ```bibtex
        @article{xie2024adan,
            author = {Xie, Xingyu and Zhou, Pan and Li, Huan and Lin, Zhouchen and
                      Yan, Shuicheng},
            title = {Adan: Adaptive {N}esterov Momentum Algorithm for Faster Optimizing
                     Deep Models},
            journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.98
    b2: Unit = 0.92
    b3: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdan, ProximalDecay, ScaleByLearningRate
