"""Adamax: Adam with the largest gradient instead of the mean square."""

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
from ..moments import (
    AbstractMomentsState,
    check_moments,
    counted,
    init_moments,
)


class ScaleByAdamaxState(AbstractMomentsState):
    """The mean and the size of the gradients so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the infinity moment, real also for complex parameters.
    """


@equation(elementwise=True)
def adamax(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    mu_correction: Scalar,
) -> tuple[Leaf, Leaf, RealLeaf]:
    mu = (1 - b1) * g + b1 * mu
    nu = jnp.maximum(b2 * nu, jnp.abs(g) + or_tiny(eps))
    return (mu / mu_correction) / nu, mu, nu


class ScaleByAdamax(AbstractLeafwise):
    r"""Divides the mean of the gradients by their decaying largest absolute value.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \max(\beta_2 \nu_{t-1},\, |g_t| + \varepsilon) &
      u_t &= \hat\mu_t / \nu_t
    \end{aligned}$$

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the infinity moment.
    - `eps`: $\varepsilon \ge 0$, a lower bound of $\nu$.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """

    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_moments(self)

    def init(self, params: Params) -> ScaleByAdamaxState:
        return init_moments(self, ScaleByAdamaxState, params)

    def leafwise(
        self, state: ScaleByAdamaxState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, adamax, state)


class Adamax(AbstractOptimizer):
    r"""Adamax: Adam with the infinity norm instead of the Euclidean norm.

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is the update of [`eqopt.ScaleByAdamax`][], which has the equations and
    the reference.

    The $\varepsilon$ is inside the maximum, as in `torch.optim.Adamax`.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - All others: see [`eqopt.ScaleByAdamax`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(self.part(ScaleByAdamax), self.part(ScaleByLearningRate))


class AdamaxW(AbstractOptimizer):
    r"""Adamax with decoupled weight decay.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByAdamax`][], which has the equations and
    the reference.

    (The `weight_decay` of `torch.optim.Adamax` is different: it is added to the
    gradients.)

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByAdamax`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 1e-4
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByAdamax),
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )
