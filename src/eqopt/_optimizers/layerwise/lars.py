"""LARS: momentum with steps in proportion to each layer."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import AbstractOptimizer
from ..._transforms.block import ScaleByTrustRatio
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._transforms.weight_decay import AddDecayedWeights
from ..._types import Hyperparameter, Mask, ScalarOrSchedule, ZeroOrMore


class LARS(AbstractOptimizer):
    r"""LARS: SGD with momentum and steps proportional to the norm of each layer.

    !!! abstract "One step"

        $$d_t = g_t + \lambda p_{t-1}, \qquad
          m_t = \beta m_{t-1} + \eta_t\, \frac{c\, \|p_{t-1}\|}{\|d_t\| +
              \varepsilon}\, d_t,
          \qquad p_t = p_{t-1} - m_t,$$

        with the norms of each leaf separately. With `nesterov`,
        $p_t = p_{t-1} - (1 + \beta)\, m_t + \beta m_{t-1}$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = 0$. $\eta$ is `learning_rate`, $\lambda$ is `weight_decay` (0.0), $c$ is
        `trust_coefficient` (0.001), $\varepsilon$ is `eps` (0.0), $\beta$ is `momentum`
        (0.9).

    A leaf with norm zero is not rescaled. As in the paper, the momentum accumulates
    updates that include the learning rate: when the learning rate drops, steps shrink
    only gradually. The denominator is the norm of the sum $d_t$; in the paper, it is
    the sum of the norms, $\|g_t\| + \lambda \|p_{t-1}\|$.

    !!! example

        ```python
        opt = eqopt.LARS(1.0)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `trust_coefficient`: $c$, a number or a 0-d array. Defaults to 0.001.
    - `eps`: $\varepsilon \ge 0$. Defaults to 0.0.
    - `trust_ratio_mask`: which parameters are rescaled: a tree of Python bools like the
        parameters or a prefix of it, or a function of the parameters that returns one.
        Defaults to `None`, which means all parameters. Biases and the parameters of
        normalization layers are often excluded from rescaling and weight decay.
    - `momentum`: $\beta$, a number or a 0-d array, usually below 1. Defaults to 0.9.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to `None`, which
        means the dtype of each parameter, at least float32.

    **When to use it:** for convolutional networks at very large batch sizes. Exclude
    biases and normalisation layers by both masks, and use a warm-up.

    ??? cite "Reference"

        ```bibtex
        @article{you2017large,
            author = {You, Yang and Gitman, Igor and Ginsburg, Boris},
            title = {Large Batch Training of Convolutional Networks},
            journal = {arXiv:1708.03888},
            year = {2017},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    trust_coefficient: Hyperparameter = 0.001
    eps: ZeroOrMore = 0.0
    trust_ratio_mask: Mask | None = static_choice(default=None)
    momentum: Hyperparameter = 0.9
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

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
