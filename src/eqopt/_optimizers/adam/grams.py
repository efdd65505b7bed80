"""Grams: Adam's step length, in the direction of the gradient."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
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


class ScaleByGramsState(AbstractMomentsState):
    """The moments of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def grams(
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
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    correction = jnp.sqrt(nu_correction) / mu_correction
    length = correction * jnp.abs(mu) / (safe_sqrt(nu) + or_tiny(eps))
    return length * jnp.sign(g), mu, nu


class ScaleByGrams(AbstractLeafwise):
    r"""The length of Adam's update, with the sign of the gradient.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
      u_t &= \operatorname{sign}(g_t)\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\,
        \frac{|\mu_t|}{\sqrt{\nu_t} + \varepsilon}
    \end{aligned}$$

    The momentum determines the step length, and the current gradient the direction. If
    both have the same sign, and $\varepsilon = 0$, this is Adam. Where the gradient is
    zero, the update is zero, however large the momentum. The sign of a complex number
    is $g / |g|$.

    As in the authors' code, $\varepsilon$ is added to the root of the uncorrected
    $\nu_t$, so in the first steps it has a larger effect than in
    [`eqopt.ScaleByAdam`][]. In an [`eqopt.Chain`][], the sign is the sign of the
    incoming updates, so preceding parts, such as momentum, change it.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment.
    - `eps`: $\varepsilon \ge 0$, outside the root.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{cao2024grams,
            author = {Cao, Yang and Li, Xiaoyu and Song, Zhao},
            title = {Grams: Gradient Descent with Adaptive Momentum Scaling},
            journal = {arXiv:2412.17107},
            year = {2024},
        }
        ```
    """

    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_moments(self)

    def init(self, params: Params) -> ScaleByGramsState:
        return init_moments(self, ScaleByGramsState, params)

    def leafwise(
        self, state: ScaleByGramsState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, grams, state)


class Grams(AbstractOptimizer):
    r"""Grams: Adam with steps in the direction of the gradient's signs.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByGrams`][], which has the equations and
    the reference.

    The weight decay is decoupled.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByGrams`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-6
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByGrams),
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )
