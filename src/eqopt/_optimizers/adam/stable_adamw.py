"""StableAdamW: AdamW with shorter steps if the second moment is out of date."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import WeightDecay, decayed
from ..._types import Leaf, Mask, Params, RealLeaf, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq, safe_sqrt
from ..moments import AbstractMomentsState, counted, init_moments, or_tiny
from ..recipe import Decays, decay_of, read_decay, shared_decay, with_own_decay


class ScaleByStableAdamState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation
def stable_adam(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    p: Leaf,
    decays: Decays,
    *,
    b1,
    b2,
    eps,
    mu_correction,
    nu_correction,
    weight_decay,
    cautious,
) -> tuple[Leaf, Leaf, RealLeaf]:
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    root = safe_sqrt(nu / nu_correction)
    d = mu / mu_correction / (root + or_tiny(eps))
    d = decayed(d, p, weight_decay, cautious) if decays.is_on else d
    # Not the quotient of squares, which may both be infinite.
    surprise = safe_sqrt(jnp.mean(abs_sq(g / jnp.maximum(root, or_tiny(eps)))))
    return d / jnp.maximum(1, surprise), mu, nu


class ScaleByStableAdam(AbstractLeafwise):
    r"""Adam's update, divided by the ratio of the gradient to its expected size.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      d_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
        + \lambda p_{t-1} &
      r_t^2 &= \operatorname{mean}_i\,
        |g_t|_i^2 \big/ \max(\hat\nu_t, \varepsilon^2)_i \\
      u_t &= d_t / \max(1, r_t)
    \end{aligned}$$

    with the mean over one leaf.

    If the second moment predicts the gradient correctly, $r_t = 1$, and this is Adam.
    If the gradient has suddenly grown, $r_t > 1$, and the leaf takes a shorter step.
    The division also damps the weight decay, so $\lambda$ is an argument here. An
    [`eqopt.AddDecayedWeights`][] after this transformation would not be damped.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$, outside the root. In $r_t$, it is a lower bound of the
        root. Defaults to 1e-6.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if there is
    weight decay and `params` is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{wortsman2023stable,
            author = {Wortsman, Mitchell and Dettmers, Tim and Zettlemoyer, Luke and
                      Morcos, Ari S. and Farhadi, Ali and Schmidt, Ludwig},
            title = {Stable and Low-Precision Training for Large-Scale Vision-Language
                     Models},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-6
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByStableAdamState:
        decay_of(self).init(params)  # raises an error without a rate that it needs
        return init_moments(self, ScaleByStableAdamState, params)

    def leafwise(
        self, state: ScaleByStableAdamState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = read_decay(self, state, params)
        shared = shared_decay(self, state.count)
        return counted(self, stable_adam, state, reads=reads, **shared)


class StableAdamW(AbstractOptimizer):
    r"""StableAdamW: AdamW that takes shorter steps when gradients suddenly grow.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          d_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
            + \lambda p_{t-1} &
          r_t^2 &= \operatorname{mean}_i\,
            |g_t|_i^2 \big/ \max(\hat\nu_t, \varepsilon^2)_i \\
          u_t &= d_t / \max(1, r_t)
        \end{aligned}$$

        with the mean over one leaf.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByStableAdam`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.99), $\varepsilon$ is `eps` (1e-6), $\lambda$ is
        `weight_decay` (0.01).

    In effect, each leaf has its own learning rate, $\eta_t / \max(1, r_t)$, which also
    multiplies its weight decay.

    !!! example

        ```python
        opt = eqopt.StableAdamW(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$, outside the root. In $r_t$, it is a lower bound of the
        root. Defaults to 1e-6.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** instead of AdamW with gradient clipping, if the loss has spikes.
    The authors claim that it prevents them when training large vision-language models,
    and that it works better there than clipping. It also works with 0.99 for $\beta_2$.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{wortsman2023stable,
            author = {Wortsman, Mitchell and Dettmers, Tim and Zettlemoyer, Luke and
                      Morcos, Ari S. and Farhadi, Ali and Schmidt, Ludwig},
            title = {Stable and Low-Precision Training for Large-Scale Vision-Language
                     Models},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-6
    weight_decay: WeightDecay = 1e-2
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        stable = with_own_decay(self, ScaleByStableAdam)
        return Chain(stable, self.part(ScaleByLearningRate))
