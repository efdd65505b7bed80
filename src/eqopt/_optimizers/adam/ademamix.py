"""AdEMAMix: a fast and a slow momentum."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate, at
from ..._types import (
    Interval,
    Mask,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq
from ...tree._like import real_full_like, wide_zeros_like
from ..moments import counted, root_plus
from ..recipe import AbstractRecipe, AddDecayedWeights, WeightDecay


class ScaleByAdEMAMixState(eqx.Module):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `m1`: the fast mean of the gradients, a tree like the parameters.
    - `m2`: the slow mean of the gradients, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """

    count: Int[Array, ""]
    m1: Updates
    m2: Updates
    nu: Nonnegative


@equation(elementwise=True)
def ademamix(
    g, m1, m2, nu, *, b1, b2, b3, alpha, eps, eps_root, m1_correction, nu_correction
):
    m1 = (1 - b1) * g + b1 * m1
    m2 = (1 - b3) * g + b3 * m2
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    direction = m1 / m1_correction + alpha * m2
    u = direction / root_plus(nu / nu_correction + eps_root, eps)
    return u, m1, m2, nu


class ScaleByAdEMAMix(AbstractLeafwise):
    r"""Adam with a second, much slower mean of the gradients.

    $$\begin{aligned}
      m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1)\, g_t &
      \hat m_{1,t} &= m_{1,t} / (1 - \beta_1^t) \\
      m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3)\, g_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= (\hat m_{1,t} + \alpha\, m_{2,t}) \big/
        \big(\sqrt{\hat\nu_t + \bar\varepsilon} + \varepsilon\big)
    \end{aligned}$$

    The slow mean $m_2$ is not corrected for its start at zero, so its effect grows
    gradually. The paper also warms up $\alpha$ and $\beta_3$, over the whole training:
    pass schedules, such as `eqopt.schedules.Linear(0.0, 5.0, 100_000)` for $\alpha$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the fast mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the slow mean, or a schedule. The slow
        mean covers about $1 / (1 - \beta_3)$ steps; for short runs, use a smaller
        value. Defaults to 0.9999.
    - `alpha`: $\alpha$, the weight of the slow mean: a number, a 0-d array or a
        schedule. Defaults to 6.0.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`: the dtype in which $m_1$ and $m_2$ are stored. Defaults to the dtype
        of each parameter, at least float32. In bfloat16, with $\beta_3 = 0.9999$, $m_2$
        would stand still.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pagliardini2025ademamix,
            author = {Pagliardini, Matteo and Ablin, Pierre and Grangier, David},
            title = {The {AdEMAMix} Optimizer: Better, Faster, Older},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    b3: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.9999
    alpha: ScalarOrSchedule = 6.0
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdEMAMixState:
        return ScaleByAdEMAMixState(
            count=jnp.zeros((), jnp.int32),
            m1=wide_zeros_like(params, self.mu_dtype),
            m2=wide_zeros_like(params, self.mu_dtype),
            nu=real_full_like(params, 0, self.nu_dtype),
        )

    def leafwise(
        self, state: ScaleByAdEMAMixState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        b3, alpha = (at(self, name, state.count) for name in ("b3", "alpha"))
        return counted(self, ademamix, state, b3=b3, alpha=alpha)


class AdEMAMix(AbstractRecipe):
    r"""AdEMAMix: AdamW with a second momentum that remembers very old gradients.

    !!! abstract "One step"

        $$\begin{aligned}
          m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1)\, g_t &
          \hat m_{1,t} &= m_{1,t} / (1 - \beta_1^t) \\
          m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3)\, g_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= (\hat m_{1,t} + \alpha\, m_{2,t}) \big/
            \big(\sqrt{\hat\nu_t + \bar\varepsilon} + \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdEMAMix`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_{1,0} = m_{2,0} = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1`
        (0.9), $\beta_2$ is `b2` (0.999), $\beta_3$ is `b3` (0.9999), $\alpha$ is
        `alpha` (5.0), $\varepsilon$ is `eps` (1e-8), $\bar\varepsilon$ is `eps_root`
        (0.0), $\lambda$ is `weight_decay` (0.0).

    !!! example

        ```python
        opt = eqopt.AdEMAMix(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the fast mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the slow mean, or a schedule. The slow
        mean covers about $1 / (1 - \beta_3)$ steps; for short runs, use a smaller
        value. Defaults to 0.9999.
    - `alpha`: $\alpha$, the weight of the slow mean: a number, a 0-d array or a
        schedule. Defaults to 5.0. ([`eqopt.ScaleByAdEMAMix`][] has 6.0, as in Optax.)
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `mu_dtype`: the dtype in which $m_1$ and $m_2$ are stored. Defaults to `None`,
        which means the dtype of each parameter, at least float32. In bfloat16, with
        $\beta_3 = 0.9999$, $m_2$ would stand still.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.

    **When to use it:** for long runs of at least $10^5$ steps on data that does not
    change. In a short run, the slow momentum hardly builds up: use a smaller `b3`, or
    AdamW.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pagliardini2025ademamix,
            author = {Pagliardini, Matteo and Ablin, Pierre and Grangier, David},
            title = {The {AdEMAMix} Optimizer: Better, Faster, Older},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    b3: Annotated[ScalarOrSchedule, Interval(0, 1, includes_high=False)] = 0.9999
    alpha: ScalarOrSchedule = 5.0
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdEMAMix, AddDecayedWeights, ScaleByLearningRate
