"""Simplified AdEMAMix: one momentum, and the gradient itself."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate, at
from ..._types import Mask, Params, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import AbstractRecipe, AddDecayedWeights, WeightDecay


class ScaleBySimplifiedAdEMAMixState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the decaying sum of the gradients, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def simplified_ademamix(g, mu, nu, *, b1, b2, alpha, eps, eps_root, nu_correction):
    mu = g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    u = (mu + alpha * g) / root_plus(nu / nu_correction + eps_root, eps)
    return u, mu, nu


class ScaleBySimplifiedAdEMAMix(AbstractLeafwise):
    r"""AdEMAMix with the gradient itself instead of the fast mean.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + g_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
      u_t &= (\mu_t + \alpha\, g_t) \big/
        \big(\sqrt{\nu_t / (1 - \beta_2^t) + \bar\varepsilon} + \varepsilon\big)
    \end{aligned}$$

    The momentum $\mu$ is a sum, not a mean, so updates are about $1 / (1 - \beta_1)$
    times as large as Adam's. Reduce the learning rate by that factor.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.99.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.95.
    - `alpha`: $\alpha$, the weight of the gradient: a number, a 0-d array or a
        schedule. Defaults to 0.0.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{morwani2025connections,
            author = {Morwani, Depen and Vyas, Nikhil and Zhang, Hanlin and
                      Kakade, Sham},
            title = {Connections between Schedule-Free Optimizers, {AdEMAMix}, and
                     Accelerated {SGD} Variants},
            journal = {arXiv preprint arXiv:2502.02431},
            year = {2025},
        }
        ```
    """

    b1: Unit = 0.99
    b2: Unit = 0.95
    alpha: ScalarOrSchedule = 0.0
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleBySimplifiedAdEMAMixState:
        return init_moments(self, ScaleBySimplifiedAdEMAMixState, params)

    def leafwise(
        self,
        state: ScaleBySimplifiedAdEMAMixState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        alpha = at(self, "alpha", state.count)
        return counted(self, simplified_ademamix, state, alpha=alpha)


class SimplifiedAdEMAMix(AbstractRecipe):
    r"""Simplified AdEMAMix: AdEMAMix with one momentum and the memory of Adam.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + g_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
          u_t &= (\mu_t + \alpha\, g_t) \big/
            \big(\sqrt{\nu_t / (1 - \beta_2^t) + \bar\varepsilon} + \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleBySimplifiedAdEMAMix`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.99),
        $\beta_2$ is `b2` (0.95), $\alpha$ is `alpha` (0.0), $\varepsilon$ is `eps`
        (1e-8), $\bar\varepsilon$ is `eps_root` (0.0), $\lambda$ is `weight_decay`
        (0.0).

    !!! example

        ```python
        opt = eqopt.SimplifiedAdEMAMix(1e-4)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.99.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.95.
    - `alpha`: $\alpha$, the weight of the gradient: a number, a 0-d array or a
        schedule. Defaults to 0.0.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** as a cheaper AdEMAMix with a single momentum. For small batches,
    use a large `alpha`.

    ??? cite "Reference"

        ```bibtex
        @article{morwani2025connections,
            author = {Morwani, Depen and Vyas, Nikhil and Zhang, Hanlin and
                      Kakade, Sham},
            title = {Connections between Schedule-Free Optimizers, {AdEMAMix}, and
                     Accelerated {SGD} Variants},
            journal = {arXiv preprint arXiv:2502.02431},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.99
    b2: Unit = 0.95
    alpha: ScalarOrSchedule = 0.0
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleBySimplifiedAdEMAMix, AddDecayedWeights, ScaleByLearningRate
