"""AdaBelief: long steps where gradients are as expected."""

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
    unbiased,
)


class ScaleByBeliefState(AbstractMomentsState):
    """The mean of the gradients so far, and their deviation from it.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment about the mean, real also for complex parameters.
    """


@equation(elementwise=True)
def belief(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    eps_root: Scalar,
    mu_correction: Scalar,
    g_correction: Scalar,
    nu_correction: Scalar,
    nesterov: bool,
) -> tuple[Leaf, Leaf, RealLeaf]:
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g - mu) + b2 * nu + eps_root
    mu_hat = unbiased(mu, g, b1, mu_correction, g_correction, nesterov)
    return mu_hat / (safe_sqrt(nu / nu_correction) + or_tiny(eps)), mu, nu


class ScaleByBelief(AbstractLeafwise):
    r"""Divides the mean of the gradients by their standard deviation.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t - \mu_t|^2 + \bar\varepsilon &
      \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
      u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
    \end{aligned}$$

    With `nesterov`, $\hat\mu_t$ is replaced by $\beta_1 \mu_t / (1 - \beta_1^{t+1}) +
    (1 - \beta_1)\, g_t / (1 - \beta_1^t)$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment.
    - `eps`: $\varepsilon \ge 0$, outside the root.
    - `eps_root`: $\bar\varepsilon \ge 0$, added to the second moment in each step, so
        that it adds up to $\bar\varepsilon / (1 - \beta_2)$.
    - `nesterov`: whether to use Nesterov momentum.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhuang2020adabelief,
            author = {Zhuang, Juntang and Tang, Tommy and Ding, Yifan and
                      Tatikonda, Sekhar C. and Dvornek, Nicha and
                      Papademetris, Xenophon and Duncan, James},
            title = {{AdaBelief} Optimizer: Adapting Stepsizes by the Belief in Observed
                     Gradients},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2020},
        }
        ```
    """

    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-16
    eps_root: Hyperparameter = 1e-16
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_moments(self)

    def init(self, params: Params) -> ScaleByBeliefState:
        return init_moments(self, ScaleByBeliefState, params)

    def leafwise(
        self, state: ScaleByBeliefState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, belief, state)


class AdaBelief(AbstractOptimizer):
    r"""AdaBelief: Adam with longer steps for gradients that are close to their mean.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByBelief`][], which has the equations and
    the reference.

    The weight decay is decoupled, as in the authors' code by default. By default, that
    code also rectifies steps like [`eqopt.RAdam`][]. This class follows the paper,
    which does not.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByBelief`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-16
    eps_root: Hyperparameter = 1e-16
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = False
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(ScaleByBelief),
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )
