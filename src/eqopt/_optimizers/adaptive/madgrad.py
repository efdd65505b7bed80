"""MADGRAD: dual averaging with momentum and a cube root."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import at, recorded, take_rate
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    RealLeaf,
    Recorded,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq
from ...tree._like import copy, real_full_like, wide_zeros_like
from ..moments import counted
from ..recipe import AbstractRecipe, AddDecayedWeights


class ScaleByMADGRADState(eqx.Module):
    """The initial parameters, and the weighted sums of the gradients since then.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `learning_rate`: the learning rate of the last step, a 0-d float32 array. Before
        the first step, the learning rate for it.
    - `grad_sum_sq`: the sum of squared gradients, real also for complex parameters.
    - `s`: the sum of gradients, a tree like the parameters.
    - `x0`: the parameters at `init`.
    """

    count: Int[Array, ""]
    learning_rate: Recorded
    grad_sum_sq: Nonnegative
    s: Updates
    x0: Params


@equation(elementwise=True)
def madgrad(g, grad_sum_sq, s, x0, p, *, k, learning_rate, momentum, eps):
    lamb = (learning_rate + eps) * jnp.sqrt(k + 1)
    grad_sum_sq = grad_sum_sq + lamb * abs_sq(g)
    s = s + lamb * g
    sigma = _safe_cbrt(grad_sum_sq) + eps
    z = x0 - s / jnp.where(sigma == 0, 1, sigma)  # zero over zero is zero
    return (1 - momentum) * (z - p), grad_sum_sq, s


def _safe_cbrt(x: RealLeaf) -> RealLeaf:
    """The cube root, with derivative 0 at 0, like `safe_sqrt`."""
    positive = x > 0
    root = jnp.cbrt(jnp.where(positive, x, 1))
    return jnp.where(positive, root, lax.stop_gradient(x))  # zero, or a NaN


class ScaleByMADGRAD(AbstractLeafwise):
    r"""Dual averaging: the start and the sum of all gradients determine the parameters.

    $$\begin{aligned}
      \lambda_k &= (\eta_k + \varepsilon) \sqrt{k + 1} \\
      \nu_{k+1} &= \nu_k + \lambda_k\, |g_k|^2 &
      s_{k+1} &= s_k + \lambda_k\, g_k \\
      z_{k+1} &= x_0 - s_{k+1} \big/ \big(\sqrt[3]{\nu_{k+1}} + \varepsilon\big) &
      u_k &= (1 - \beta) (z_{k+1} - x_k)
    \end{aligned}$$

    for $k = 0, 1, …$, where $x_k$ are the parameters, and $\nu_0 = s_0 = 0$.

    The update points downhill and includes the learning rate: do not multiply it by
    another learning rate. `eqopt.tree.get(state, "learning_rate")` returns the current
    learning rate. As in the authors' code, $\varepsilon$ is also added to the learning
    rate.

    Any other change to the parameters after `init` is gradually undone, because only
    $x_0$ and the sums determine the parameters. So do not add decoupled weight decay.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array, or a schedule: a schedule of
        [`eqopt.schedules`][] or any function of the number of steps taken so far.
    - `momentum`: $\beta \in [0, 1)$. The parameters $x$ are a mean of the $z$ so far,
        with this decay. Defaults to 0.9.
    - `eps`: $\varepsilon \ge 0$. For very small gradients, use 0. Defaults to 1e-6.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $s$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32. In half precision, the sums would
        soon stop growing.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{defazio2021adaptivity,
            author = {Defazio, Aaron and Jelassi, Samy},
            title = {Adaptivity without Compromise: A Momentumized, Adaptive, Dual
                     Averaged Gradient Method for Stochastic Optimization},
            journal = {arXiv preprint arXiv:2101.11075},
            year = {2021},
        }
        ```
    """

    _descends = True

    learning_rate: ScalarOrSchedule
    momentum: Unit = 0.9
    eps: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByMADGRADState:
        count = jnp.zeros((), jnp.int32)
        return ScaleByMADGRADState(
            count=count,
            learning_rate=recorded(at(self, "learning_rate", count)),
            grad_sum_sq=real_full_like(params, 0, self.nu_dtype),
            s=wide_zeros_like(params, self.mu_dtype),
            x0=copy(params),
        )

    def leafwise(
        self, state: ScaleByMADGRADState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        eta, state = take_rate(self, state)
        return counted(
            self,
            madgrad,
            state,
            reads={"x0": state.x0},
            k=state.count.astype(float),
            learning_rate=eta,
        )


class MADGRAD(AbstractRecipe):
    r"""MADGRAD: dual averaging that generalizes like SGD and adapts like Adam.

    !!! abstract "One step"

        $$\begin{aligned}
          \lambda_k &= (\eta_k + \varepsilon) \sqrt{k + 1} \\
          \nu_{k+1} &= \nu_k + \lambda_k\, |g_k|^2 &
          s_{k+1} &= s_k + \lambda_k\, g_k \\
          z_{k+1} &= x_0 - s_{k+1} \big/ \big(\sqrt[3]{\nu_{k+1}} + \varepsilon\big) &
          u_k &= (1 - \beta) (z_{k+1} - x_k)
        \end{aligned}$$

        for $k = 0, 1, …$, where $x_k$ are the parameters, and $\nu_0 = s_0 = 0$.

        $$x_{k+1} = x_k + u_k,$$

        where $u_k$ is the update of [`eqopt.ScaleByMADGRAD`][], with
        $g_k + \lambda x_k$ instead of the gradient $g_k$.

        $\eta$ is `learning_rate`, $\beta$ is `momentum` (0.9), $\lambda$ is
        `weight_decay` (0.0), $\varepsilon$ is `eps` (1e-6).

    As in the authors' code, weight decay is an $L^2$ penalty. MADGRAD needs
    less weight decay than other optimizers, often none. Its best learning rate is
    neither Adam's nor SGD's, so tune it separately.

    !!! example

        ```python
        opt = eqopt.MADGRAD(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `momentum`: $\beta \in [0, 1)$. The parameters $x$ are a mean of the $z$ so far,
        with this decay. Defaults to 0.9.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `eps`: $\varepsilon \ge 0$. For very small gradients, use 0. Defaults to 1e-6.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $s$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32. In half
        precision, the sums would soon stop growing.

    **When to use it:** where SGD with momentum generalizes better than Adam, but you do
    not want to tune it as finely. Tune its learning rate separately.

    ??? cite "Reference"

        ```bibtex
        @article{defazio2021adaptivity,
            author = {Defazio, Aaron and Jelassi, Samy},
            title = {Adaptivity without Compromise: A Momentumized, Adaptive, Dual
                     Averaged Gradient Method for Stochastic Optimization},
            journal = {arXiv preprint arXiv:2101.11075},
            year = {2021},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    momentum: Unit = 0.9
    weight_decay: ScalarOrSchedule = 0.0
    eps: ZeroOrMore = 1e-6
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = AddDecayedWeights, ScaleByMADGRAD
