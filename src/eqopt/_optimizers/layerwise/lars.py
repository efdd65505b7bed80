"""LARS: momentum with steps in proportion to each layer."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.checks import check_scalar
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._transforms.trust_ratio import ScaleByTrustRatio
from ..._transforms.weight_decay import AddDecayedWeights
from ..._types import Hyperparameter, Mask, ScalarOrSchedule


class LARS(AbstractOptimizer):
    r"""LARS: SGD with momentum and steps proportional to the norm of each layer.

    $$d_t = g_t + \lambda p_{t-1}, \qquad
      m_t = \beta m_{t-1} + \eta_t\, \frac{c\, \|p_{t-1}\|}{\|d_t\| + \varepsilon}\, d_t,
      \qquad p_t = p_{t-1} - m_t,$$

    with the norms of each leaf separately.

    A leaf with norm zero is not rescaled. As in the paper, the momentum accumulates
    updates that include the learning rate: when the learning rate drops, steps shrink
    only gradually. The denominator is the norm of the sum $d_t$; in the paper, it is
    the sum of the norms, $\|g_t\| + \lambda \|p_{t-1}\|$.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule.
    - `mask`: see [`eqopt.AddDecayedWeights`][].
    - `trust_coefficient`: $c$, a number or a 0-d array.
    - `eps`: $\varepsilon \ge 0$.
    - `trust_ratio_mask`: which parameters are rescaled, as in [`eqopt.Masked`][].
        Defaults to all. Biases and the parameters of normalization layers are often
        excluded from rescaling and weight decay.
    - `momentum`: $\beta$, a number or a 0-d array, usually below 1.
    - `nesterov`: whether to use Nesterov momentum.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.

    For the reference, see [`eqopt.ScaleByTrustRatio`][].
    """

    learning_rate: ScalarOrSchedule
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    trust_coefficient: Hyperparameter = 0.001
    eps: Hyperparameter = 0.0
    trust_ratio_mask: Mask | None = static_choice(default=None)
    momentum: Hyperparameter = 0.9
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_scalar(self, "momentum")

    @property
    def chain(self) -> Chain:
        rescale = self.part(ScaleByTrustRatio)
        if self.trust_ratio_mask is not None:
            rescale = Masked(rescale, self.trust_ratio_mask)
        return Chain(
            self.part(AddDecayedWeights),
            rescale,
            self.part(ScaleByLearningRate),
            Trace(self.momentum, self.nesterov, self.accumulator_dtype),
        )
