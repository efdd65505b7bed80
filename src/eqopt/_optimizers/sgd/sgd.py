"""Stochastic gradient descent, with or without momentum."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._types import Hyperparameter, ScalarOrSchedule


class SGD(AbstractOptimizer):
    r"""Stochastic gradient descent.

    !!! abstract "One step"

        $$p_t = p_{t-1} - \eta_t\, g_t.$$

        With `momentum`, $m_t = \beta m_{t-1} + g_t$ replaces $g_t$. If `nesterov` is
        also set, $g_t + \beta m_t$ replaces it.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `momentum`. By default,
        `nesterov` is `False`, `momentum` is `None`.

    As in `torch.optim.SGD` with `dampening=0`, the momentum is a sum, not an average:
    with $\beta = 0.9$, steps are up to ten times larger than without momentum.

    !!! example

        ```python
        opt = eqopt.SGD(0.1)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `momentum`: $\beta$, a number or a 0-d array. Defaults to `None`, which means no
        momentum. The state then only has the step count.
    - `nesterov`: whether to use Nesterov momentum; without effect if `momentum` is
        `None`. Defaults to `False`.
    - `accumulator_dtype`: the dtype in which the momentum is stored. Defaults to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** with momentum and a tuned schedule for convolutional image
    models. Without momentum, use it if there is no memory for state, or as a baseline
    with steps that you can compute by hand.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{sutskever2013importance,
            author = {Sutskever, Ilya and Martens, James and Dahl, George and Hinton,
                      Geoffrey},
            title = {On the Importance of Initialization and Momentum in Deep Learning},
            booktitle = {International Conference on Machine Learning},
            year = {2013},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    momentum: Hyperparameter | None = None
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        descend = self.part(ScaleByLearningRate)
        if self.momentum is None:
            return Chain(descend)
        trace = Trace(self.momentum, self.nesterov, self.accumulator_dtype)
        return Chain(trace, descend)
