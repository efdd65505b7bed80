"""Adam, AdamW with decoupled weight decay, and both with Nesterov momentum."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

from ..._arguments.checks import check_needs
from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Params, Scalar, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq, as_float, safe_increment
from ..moments import AbstractMomentsState, counted, init_moments, root_plus, unbiased
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByAdamState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def adam(
    g, mu, nu, *, b1, b2, eps, eps_root, mu_correction, g_correction, nu_correction
):
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    mu_hat = unbiased(mu, g, b1, mu_correction, g_correction)
    return mu_hat / root_plus(nu / nu_correction + eps_root, eps), mu, nu


# The number of terms after which the rest of the series below vanishes in float64.
_TERMS = 54


@jax.jit
def growing_corrections(b1, momentum_decay, count) -> dict[str, Array]:
    r"""The bias corrections of `ScaleByAdam` if $\beta_1$ grows like $b_t$."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        b1, t = jnp.asarray(b1, float), jnp.asarray(count, float)
        rate = jnp.asarray(momentum_decay, float) * math.log(0.96)
        growth = lambda t: 1 - 0.5 * jnp.exp(t * rate)
        ahead = 1 - _product(b1, rate, t + 1)
        now = 1 - _product(b1, rate, t)
        return {
            "mu_correction": ahead / growth(t + 1),
            "g_correction": (1 - b1) * now / (1 - b1 * growth(t)),
        }


def _product(b1: Scalar, rate: Scalar, t: Scalar) -> Scalar:
    r"""$\prod_{i \le t} b_i$, without a state.

    The logarithm of $1 - q^i / 2$ is a series in $q^i / 2$, where $q$ is $0.96^\psi$.
    Each of its terms, summed over all steps, is a geometric series.
    """
    k = jnp.arange(1, _TERMS + 1).astype(rate.dtype)
    is_constant = rate == 0
    r = k * jnp.where(is_constant, -1.0, rate)
    sums = jnp.exp(r) * jnp.expm1(t * r) / jnp.expm1(r)
    sums = jnp.where(is_constant, t, sums)
    return b1**t * jnp.exp(-jnp.sum(0.5**k / k * sums))


class ScaleByAdam(AbstractLeafwise):
    r"""Divides the mean of the gradients by the root of the mean of their squares.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} + \varepsilon\big)
    \end{aligned}$$

    With `nesterov`, $\hat\mu_t$ is replaced by $\beta_1 \mu_t / (1 - \beta_1^{t+1}) +
    (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

    With `momentum_decay`, these weights grow towards their final values:

    $$\hat\mu_t = \frac{b_{t+1}\, \mu_t}{1 - \prod_{i \le t+1} b_i} +
      \frac{(1 - b_t)\, g_t}{1 - \prod_{i \le t} b_i}, \qquad
      b_t = \beta_1 \Big(1 - \frac{0.96^{t \psi}}{2}\Big).$$

    With $\beta_2 = 0.999$, a bfloat16 $\nu$ would be too coarse to change. To save bytes
    for bfloat16 parameters, pass only `mu_dtype=jnp.bfloat16`, or use
    [`eqopt.StoreState`][].

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `momentum_decay`: $\psi \ge 0$, how fast Nesterov momentum grows from about half
        of $\beta_1$. `None` means constant momentum. It needs `nesterov`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if `momentum_decay` is
    given without `nesterov`.

    ??? cite "References"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }

        @inproceedings{dozat2016incorporating,
            author = {Dozat, Timothy},
            title = {Incorporating {N}esterov Momentum into {A}dam},
            booktitle = {ICLR Workshop},
            year = {2016},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    momentum_decay: ZeroOrMore | None = None

    def __check_init__(self) -> None:
        is_met = self.nesterov or self.momentum_decay is None
        check_needs("momentum_decay", "nesterov=True", is_met)

    def init(self, params: Params) -> ScaleByAdamState:
        return init_moments(self, ScaleByAdamState, params)

    def leafwise(
        self, state: ScaleByAdamState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        if self.momentum_decay is None:
            return counted(self, adam, state)
        count = safe_increment(state.count)
        corrections = growing_corrections(
            as_float(self.b1), as_float(self.momentum_decay), count
        )
        return counted(self, adam, state, count=count, **corrections)


class Adam(AbstractRecipe):
    r"""Adam: steps of about the learning rate in every coordinate.

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

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0). By default, `nesterov` is `False`.

    The $\varepsilon$ is outside the root and applies to the bias-corrected moments, as
    in the paper and in `torch.optim.Adam`.

    !!! example

        ```python
        opt = eqopt.Adam(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.

    **When to use it:** as the first optimizer to try. Steps do not depend on the scale
    of the gradients, so one learning rate fits many models.

    ??? cite "References"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }

        @inproceedings{dozat2016incorporating,
            author = {Dozat, Timothy},
            title = {Incorporating {N}esterov Momentum into {A}dam},
            booktitle = {ICLR Workshop},
            year = {2016},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdam, ScaleByLearningRate


class AdamW(AbstractRecipe):
    r"""Adam with decoupled weight decay.

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

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0), $\lambda$ is `weight_decay` (0.0001). By default, `nesterov`
        is `False`.

    As in `torch.optim.AdamW`, the decay is multiplied by the learning rate, but the
    default of $\lambda$ is a hundredth of torch's.

    !!! example

        ```python
        opt = eqopt.AdamW(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0001.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.

    **When to use it:** for transformers, and wherever you want weight decay with Adam.
    An $L^2$ penalty in the loss would be divided by $\sqrt{\nu}$ like the rest of the
    gradient.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{loshchilov2019decoupled,
            author = {Loshchilov, Ilya and Hutter, Frank},
            title = {Decoupled Weight Decay Regularization},
            booktitle = {International Conference on Learning Representations},
            year = {2019},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: WeightDecay = 1e-4
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdam, AddDecayedWeights, ScaleByLearningRate


class NAdam(AbstractRecipe):
    r"""Adam with Nesterov momentum.

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

        With `momentum_decay`, these weights grow towards their final values:

        $$\hat\mu_t = \frac{b_{t+1}\, \mu_t}{1 - \prod_{i \le t+1} b_i} +
          \frac{(1 - b_t)\, g_t}{1 - \prod_{i \le t} b_i}, \qquad
          b_t = \beta_1 \Big(1 - \frac{0.96^{t \psi}}{2}\Big).$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][] with `nesterov`.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0), $\psi$ is `momentum_decay`. By default, `nesterov` is `True`.

    `torch.optim.NAdam` has `momentum_decay=0.004`.

    !!! example

        ```python
        opt = eqopt.NAdam(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `momentum_decay`: $\psi \ge 0$, how fast Nesterov momentum grows from about half
        of $\beta_1$. It needs `nesterov`. Defaults to `None`, which means constant
        momentum.

    **When to use it:** instead of Adam where momentum helps; it looks one step ahead.

    ??? cite "References"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }

        @inproceedings{dozat2016incorporating,
            author = {Dozat, Timothy},
            title = {Incorporating {N}esterov Momentum into {A}dam},
            booktitle = {ICLR Workshop},
            year = {2016},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    momentum_decay: ZeroOrMore | None = None

    _parts = ScaleByAdam, ScaleByLearningRate


class NAdamW(AbstractRecipe):
    r"""Adam with Nesterov momentum and decoupled weight decay.

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

        With `momentum_decay`, these weights grow towards their final values:

        $$\hat\mu_t = \frac{b_{t+1}\, \mu_t}{1 - \prod_{i \le t+1} b_i} +
          \frac{(1 - b_t)\, g_t}{1 - \prod_{i \le t} b_i}, \qquad
          b_t = \beta_1 \Big(1 - \frac{0.96^{t \psi}}{2}\Big).$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][] with `nesterov`.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is
        `eps_root` (0.0), $\lambda$ is `weight_decay` (0.0001), $\psi$ is
        `momentum_decay`. By default, `nesterov` is `True`.

    `torch.optim.NAdam` with `decoupled_weight_decay` has `momentum_decay=0.004`.

    !!! example

        ```python
        opt = eqopt.NAdamW(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0001.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `momentum_decay`: $\psi \ge 0$, how fast Nesterov momentum grows from about half
        of $\beta_1$. It needs `nesterov`. Defaults to `None`, which means constant
        momentum.

    **When to use it:** instead of AdamW where momentum helps.

    ??? cite "References"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }

        @inproceedings{dozat2016incorporating,
            author = {Dozat, Timothy},
            title = {Incorporating {N}esterov Momentum into {A}dam},
            booktitle = {ICLR Workshop},
            year = {2016},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: WeightDecay = 1e-4
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    momentum_decay: ZeroOrMore | None = None

    _parts = ScaleByAdam, AddDecayedWeights, ScaleByLearningRate
