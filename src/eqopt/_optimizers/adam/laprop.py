"""LaProp: Adam that normalizes before it averages."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._trees.precision import or_tiny
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    RealLeaf,
    Scalar,
    ScalarOrSchedule,
)
from ...numerics import abs_sq, safe_sqrt
from ..moments import (
    AbstractMomentsState,
    check_moments,
    counted,
    init_moments,
)


class ScaleByLaPropState(AbstractMomentsState):
    """The moments so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the normalized gradients, a tree like the parameters.
    - `nu`: the second moment of the gradients, real also for complex parameters.
    """


@equation(elementwise=True)
def laprop(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    mu_correction: Scalar,
    nu_correction: Scalar,
) -> tuple[Leaf, Leaf, RealLeaf]:
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    d = g / (safe_sqrt(nu / nu_correction) + or_tiny(eps))
    mu = (1 - b1) * d + b1 * mu
    return mu / mu_correction, mu, nu


class ScaleByLaProp(AbstractLeafwise):
    r"""Averages gradients that have been divided by the root of their mean square.

    $$\begin{aligned}
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\,
        g_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big) \\
      u_t &= \mu_t / (1 - \beta_1^t)
    \end{aligned}$$

    [`eqopt.ScaleByAdam`][] averages first. If $\beta_1 > \beta_2$, a large gradient may
    then be divided by a second moment that no longer contains it. This cannot happen in
    LaProp.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment.
    - `eps`: $\varepsilon \ge 0$, outside the root.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{ziyin2020laprop,
            author = {Ziyin, Liu and Wang, Zhikang T. and Ueda, Masahito},
            title = {{LaProp}: Separating Momentum and Adaptivity in {A}dam},
            journal = {arXiv:2002.04839},
            year = {2020},
        }
        ```
    """

    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-15
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_moments(self)

    def init(self, params: Params) -> ScaleByLaPropState:
        return init_moments(self, ScaleByLaPropState, params)

    def leafwise(
        self, state: ScaleByLaPropState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, laprop, state)


class LaProp(AbstractOptimizer):
    r"""LaProp: momentum of normalized gradients, with decoupled weight decay.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByLaProp`][], which has the equations and
    the reference.

    The authors' code differs in two points. It averages $\eta_t$ times the normalized
    gradient, which makes a difference while a schedule changes $\eta_t$. And $\eta_t$
    does not multiply its decay, as with the mode `"independent"` of
    [`eqopt.AddDecayedWeights`][].

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByLaProp`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-15
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByLaProp),
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )
