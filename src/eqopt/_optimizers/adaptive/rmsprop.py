"""RMSprop: gradients over the root of their mean square, or over their deviation."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Equation, Leafwise, equation
from ..._transforms.normalize import or_1
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._types import (
    Hyperparameter,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, bias_correction, safe_increment, safe_sqrt
from ...tree._like import real_full_like
from ..moments import AbstractMomentsState, counted, init_moments


def over_root(g, nu, eps, eps_in_sqrt=True):
    """`g` over the root of `nu`; zero over zero is zero, so `eps` may be zero."""
    root = safe_sqrt(nu + eps) if eps_in_sqrt else safe_sqrt(nu) + eps
    return g / or_1(root)


class ScaleByRMSState(eqx.Module):
    """The mean square of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `nu`: the second moment, a tree like the parameters, real also for complex
        parameters.
    """

    count: Int[Array, ""]
    nu: Nonnegative


@equation(elementwise=True)
def rms(g, nu, *, decay, eps, correction, eps_in_sqrt):
    nu = (1 - decay) * abs_sq(g) + decay * nu
    nu_hat = nu if correction is None else nu / correction
    return over_root(g, nu_hat, eps, eps_in_sqrt), nu


class ScaleByRMS(AbstractLeafwise):
    r"""Divides the gradients by the root of the mean of their squares.

    $$\nu_t = \rho \nu_{t-1} + (1 - \rho)\, |g_t|^2, \qquad
      u_t = \frac{g_t}{\sqrt{\nu_t + \varepsilon}}.$$

    Without `eps_in_sqrt`, $u_t = g_t / (\sqrt{\nu_t} + \varepsilon)$.

    With `bias_correction`, $\hat\nu_t = \nu_t / (1 - \rho^t)$ replaces $\nu_t$.

    With bias correction, and with $\varepsilon$ outside the root, it is
    [`eqopt.ScaleByAdam`][] at $\beta_1 = 0$ without the memory for $\mu$.

    **Arguments:**

    - `decay`: $\rho \in [0, 1)$. Defaults to 0.9.
    - `eps`: $\varepsilon \ge 0$. Derivatives through the step are also finite without
        it. Defaults to 1e-8.
    - `initial_scale`: $\nu_0 \ge 0$ in every coordinate. Defaults to 0.0.
    - `eps_in_sqrt`: whether $\varepsilon$ is inside the root. Defaults to `True`.
    - `bias_correction`: whether to correct the bias of $\nu$, which starts at zero.
        Defaults to `False`.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @misc{hinton2012neural,
            author = {Hinton, Geoffrey and Srivastava, Nitish and Swersky, Kevin},
            title = {Neural Networks for Machine Learning. Lecture 6: Overview of
                     Mini-Batch Gradient Descent},
            howpublished = {Lecture notes, University of Toronto},
            year = {2012},
        }
        ```
    """

    decay: Unit = 0.9
    eps: ZeroOrMore = 1e-8
    initial_scale: ZeroOrMore = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByRMSState:
        nu = real_full_like(params, self.initial_scale, self.nu_dtype)
        return ScaleByRMSState(count=jnp.zeros((), jnp.int32), nu=nu)

    def leafwise(
        self, state: ScaleByRMSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return _corrected(self, rms, state)


class ScaleByStddevState(AbstractMomentsState):
    """The mean and the mean square of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def stddev(g, mu, nu, *, decay, eps, correction, eps_in_sqrt):
    mu = (1 - decay) * g + decay * mu
    nu = (1 - decay) * abs_sq(g) + decay * nu
    mu_hat, nu_hat = (m if correction is None else m / correction for m in (mu, nu))
    # Differs from Optax in: the rounded difference may be negative, and its root NaN.
    variance = jnp.maximum(nu_hat - abs_sq(mu_hat), 0)
    # Infinity minus infinity would be NaN.
    variance = jnp.where(jnp.isinf(nu_hat), nu_hat, variance)
    return over_root(g, variance, eps, eps_in_sqrt), mu, nu


class ScaleByStddev(AbstractLeafwise):
    r"""Divides the gradients by their standard deviation.

    $$\begin{aligned}
      \mu_t &= \rho \mu_{t-1} + (1 - \rho)\, g_t &
      \nu_t &= \rho \nu_{t-1} + (1 - \rho)\, |g_t|^2 \\
      \sigma_t^2 &= \nu_t - |\mu_t|^2 &
      u_t &= \frac{g_t}{\sqrt{\sigma_t^2 + \varepsilon}}
    \end{aligned}$$

    Without `eps_in_sqrt`, $u_t = g_t / (\sigma_t + \varepsilon)$.

    With `bias_correction`, $\mu_t$ and $\nu_t$ are divided by $1 - \rho^t$. A single
    gradient has no variance, so the first update is then $g_1 / \sqrt\varepsilon$:
    choose $\varepsilon$ accordingly. In float32, the square of a gradient above 1.8e19
    overflows: its coordinate then has an infinite $\nu$, and updates of zero.

    **Arguments:**

    - `decay`: $\rho \in [0, 1)$. Defaults to 0.9.
    - `eps`: $\varepsilon \ge 0$. Derivatives through the step are also finite without
        it. Defaults to 1e-8.
    - `initial_scale`: $\nu_0 \ge 0$ in every coordinate; $\mu_0$ is zero. Defaults to
        0.0.
    - `eps_in_sqrt`: whether $\varepsilon$ is inside the root. Defaults to `True`.
    - `bias_correction`: whether to correct the biases of $\mu$ and $\nu$, which start
        at zero. Defaults to `False`.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32. In half precision, their
        difference would lose most digits.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{graves2013generating,
            author = {Graves, Alex},
            title = {Generating Sequences With Recurrent Neural Networks},
            journal = {arXiv preprint arXiv:1308.0850},
            year = {2013},
        }
        ```
    """

    decay: Unit = 0.9
    eps: ZeroOrMore = 1e-8
    initial_scale: ZeroOrMore = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByStddevState:
        return init_moments(self, ScaleByStddevState, params, self.initial_scale)

    def leafwise(
        self, state: ScaleByStddevState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return _corrected(self, stddev, state)


def _corrected(owner: ScaleByRMS | ScaleByStddev, equation: Equation, state: Any):
    count = safe_increment(state.count)
    correction = bias_correction(owner.decay, count) if owner.bias_correction else None
    return counted(owner, equation, state, count=count, correction=correction)


class RMSprop(AbstractOptimizer):
    r"""RMSprop: steps of about the learning rate in every coordinate.

    !!! abstract "One step"

        $$\nu_t = \rho \nu_{t-1} + (1 - \rho)\, |g_t|^2, \qquad
          u_t = \frac{g_t}{\sqrt{\nu_t + \varepsilon}}.$$

        Without `eps_in_sqrt`, $u_t = g_t / (\sqrt{\nu_t} + \varepsilon)$.

        With `centered`, $\nu_t - |\mu_t|^2$ replaces $\nu_t$ under the root, with
        $\mu_t = \rho \mu_{t-1} + (1 - \rho)\, g_t$. Then the divisor is the standard
        deviation of the gradients. With `bias_correction`, $\nu_t$ and $\mu_t$ are
        first divided by $1 - \rho^t$.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByRMS`][], or of
        [`eqopt.ScaleByStddev`][] with `centered`.

        With `momentum`, $p_t = p_{t-1} + m_t$, with $m_t = \beta m_{t-1} - \eta_t u_t$.
        If `nesterov` is also set, $p_t = p_{t-1} - \eta_t u_t + \beta m_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`, $\rho$ is `decay` (0.9), $\varepsilon$ is `eps` (1e-8), $\nu_0$
        is `initial_scale` (0.0), $\beta$ is `momentum`. At the start,
        $\mu_0 = m_0 = 0$. By default, `eps_in_sqrt` is `True`, `centered` is `False`,
        `momentum` is `None`, `bias_correction` is `False`.

    Momentum includes the learning rate: with a schedule, the effect of large steps
    persists for a while.

    `torch.optim.RMSprop` has $\varepsilon$ outside the root (`eps_in_sqrt=False`) and
    defaults to `decay=0.99` (called `alpha`). It multiplies by the learning rate after
    the momentum, which is the same for a constant learning rate.

    !!! example

        ```python
        opt = eqopt.RMSprop(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `decay`: $\rho \in [0, 1)$. Defaults to 0.9.
    - `eps`: $\varepsilon \ge 0$. Derivatives through the step are also finite without
        it. Defaults to 1e-8.
    - `initial_scale`: $\nu_0 \ge 0$ in every coordinate. Defaults to 0.0.
    - `eps_in_sqrt`: whether $\varepsilon$ is inside the root. Defaults to `True`.
    - `centered`: whether to divide by the standard deviation of the gradients. Defaults
        to `False`.
    - `momentum`: $\beta$, a number or a 0-d array: the decay of [`eqopt.Trace`][].
        Defaults to `None`, which means no momentum, and no state for it.
    - `nesterov`: whether to use Nesterov momentum; without effect if `momentum` is
        `None`. Defaults to `False`.
    - `bias_correction`: whether to correct the bias of $\nu$, which starts at zero.
        Defaults to `False`.
    - `mu_dtype`: the dtype in which $\mu$ is stored, if centered. Defaults to `None`,
        which means the dtype of each parameter, at least float32.
    - `accumulator_dtype`: the dtype in which the momentum is stored. Defaults to
        `None`, which means the dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.

    **When to use it:** for recurrent networks and reinforcement learning, where recipes
    are written for it. Elsewhere, [`eqopt.Adam`][] does the same with momentum and bias
    correction. Recipes for other libraries depend on the $\varepsilon$ and $\nu_0$ of
    these libraries: check both.

    ??? cite "References"

        ```bibtex
        @misc{hinton2012neural,
            author = {Hinton, Geoffrey and Srivastava, Nitish and Swersky, Kevin},
            title = {Neural Networks for Machine Learning. Lecture 6: Overview of
                     Mini-Batch Gradient Descent},
            howpublished = {Lecture notes, University of Toronto},
            year = {2012},
        }
        ```

        ```bibtex
        @article{graves2013generating,
            author = {Graves, Alex},
            title = {Generating Sequences With Recurrent Neural Networks},
            journal = {arXiv preprint arXiv:1308.0850},
            year = {2013},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    decay: Unit = 0.9
    eps: ZeroOrMore = 1e-8
    initial_scale: ZeroOrMore = 0.0
    eps_in_sqrt: bool = True
    centered: bool = False
    momentum: Hyperparameter | None = None
    nesterov: bool = False
    bias_correction: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        normalize = self.part(ScaleByStddev if self.centered else ScaleByRMS)
        descend = self.part(ScaleByLearningRate)
        if self.momentum is None:
            return Chain(normalize, descend)
        trace = Trace(self.momentum, self.nesterov, self.accumulator_dtype)
        return Chain(normalize, descend, trace)
