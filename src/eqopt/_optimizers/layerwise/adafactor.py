"""Adafactor: Adam's second moments in sublinear memory."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_count, check_range
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._transforms.average import EMA
from ..._transforms.block import ScaleByParamBlockRMS
from ..._transforms.factored_rms import ScaleByFactoredRMS
from ..._transforms.scale import Scale, ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights
from ..._trees.axes import DimensionNumbers
from ..._types import Hyperparameter, IntegerLike, Mask, ScalarOrSchedule


class Adafactor(AbstractOptimizer):
    r"""Adafactor: adaptive steps with almost no state.

    $$\begin{aligned}
      d_t &= \eta_t \max\left(10^{-3}, \operatorname{RMS}(p_{t-1})\right)
             u_t \big/ \max\left(1, \operatorname{RMS}(u_t) / d\right) \\
      m_t &= \beta m_{t-1} + (1 - \beta)\, d_t \\
      p_t &= p_{t-1} - m_t - \lambda p_{t-1},
    \end{aligned}$$

    where $u_t$ is the update of [`eqopt.ScaleByFactoredRMS`][], which has the equations
    and the reference.

    Without `momentum`, $m_t = d_t$.

    The root mean squares are taken over one leaf at a time.

    The learning rate is relative to the size of the parameters. The paper uses
    `lambda count: jnp.minimum(1e-2, (count + 1.0) ** -0.5)`, and
    `torch.optim.Adafactor` with `lr=eta` uses `eta` instead of `1e-2`. Otherwise,
    torch's optimizer differs as follows:

    - matrices are the last two axes, and are always factored:
        `min_dim_size_to_factor=1` does the same for arrays with two axes;
    - its weight decay is multiplied by `lr`: $\lambda$ here is `lr * weight_decay`;
    - its `eps` bounds the second moment from below, and is not added to the squares.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. `None` means 1: in that case, scale the
        updates yourself, because steps are otherwise as large as the parameters.
    - `multiply_by_parameter_scale`: whether $\operatorname{RMS}(p)$ is a factor, so
        that learning rates are relative.
    - `clipping_threshold`: $d > 0$, or `None` for no clipping.
    - `momentum`: $\beta \in [0, 1)$, or `None` for no momentum and no memory for it.
    - `mu_dtype`: the dtype in which $m$ is stored. Defaults to float32.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. It is not multiplied
        by the learning rate.
    - `mask`: see [`eqopt.AddDecayedWeights`][].
    - `decay_offset`: `step_offset` of [`eqopt.ScaleByFactoredRMS`][], an integer of at
        least 0.
    - All others: see [`eqopt.ScaleByFactoredRMS`][].
    """

    learning_rate: ScalarOrSchedule | None = None
    min_dim_size_to_factor: int = static_choice(static=True, default=128)
    decay_rate: Hyperparameter = 0.8
    decay_offset: IntegerLike = 0
    multiply_by_parameter_scale: bool = True
    clipping_threshold: Hyperparameter | None = 1.0
    momentum: Hyperparameter | None = None
    mu_dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)
    weight_decay: ScalarOrSchedule = 0.0
    eps: Hyperparameter = 1e-30
    factored: bool = True
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_count(self, "decay_offset", 0)
        if self.momentum is not None:
            check_range(self, "momentum", 0, 1)

    @property
    def chain(self) -> Chain:
        parts: list[AbstractTransformation] = [
            ScaleByFactoredRMS(
                self.factored,
                self.decay_rate,
                self.decay_offset,
                self.min_dim_size_to_factor,
                self.eps,
                weight_dimension_numbers=self.weight_dimension_numbers,
                clipping_threshold=self.clipping_threshold,
                nu_dtype=self.nu_dtype,
            )
        ]
        if self.learning_rate is not None:
            parts.append(ScaleByLearningRate(self.learning_rate, flip_sign=False))
        if self.multiply_by_parameter_scale:
            parts.append(ScaleByParamBlockRMS())
        if self.momentum is not None:
            parts.append(EMA(self.momentum, False, self.mu_dtype))
        return Chain(*parts, self.part(AddDecayedWeights), Scale(-1.0))
