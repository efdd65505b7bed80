"""The sign of the gradient, or of its running mean."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractStateless, Leafwise, equation
from ..._transforms.trace import EMA
from ..._types import Params, ScalarOrSchedule, Unit
from ..recipe import AbstractRecipe, ScaleByLearningRate


@equation(elementwise=True)
def sign(g):
    return jnp.sign(g)


class ScaleBySign(AbstractStateless):
    r"""The sign of each element of the updates: $u = \operatorname{sign}(g)$.

    The sign of zero is zero, the sign of NaN is NaN, and the sign of a complex number
    is $g / |g|$.
    """

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(sign)


class SignSGD(AbstractRecipe):
    r"""Gradient descent that uses only the signs of the gradient.

    !!! abstract "One step"

        $$p_t = p_{t-1} - \eta_t \operatorname{sign}(g_t)$$

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`.

    !!! example

        ```python
        opt = eqopt.SignSGD(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Every parameter
        moves by exactly this amount in each step, so use a decaying schedule.

    **When to use it:** for steps that need no state and do not depend on the scale of
    the gradients, with large batches and a learning rate that decays to zero.

    ??? cite "References"

        ```bibtex
        @inproceedings{bernstein2018signsgd,
            author = {Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar
                      and Anandkumar, Animashree},
            title = {{signSGD}: Compressed Optimisation for Non-Convex Problems},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }

        @misc{balles2020geometry,
            author = {Balles, Lukas and Pedregosa, Fabian and Le Roux, Nicolas},
            title = {The Geometry of Sign Gradient Descent},
            year = {2020},
            eprint = {2002.08056},
            archivePrefix = {arXiv},
        }
        ```
    """

    learning_rate: ScalarOrSchedule

    _parts = ScaleBySign, ScaleByLearningRate


class Signum(AbstractOptimizer):
    r"""[`eqopt.SignSGD`][] with momentum.

    !!! abstract "One step"

        $$m_t = \beta m_{t-1} + (1 - \beta)\, g_t, \qquad
          p_t = p_{t-1} - \eta_t \operatorname{sign}(m_t)$$

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.9).

    !!! example

        ```python
        opt = eqopt.Signum(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum. Defaults to 0.9.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to `None`, which
        means the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if `beta` is out of its range.

    **When to use it:** like Lion. It equals Lion with both decays equal and without
    weight decay.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{bernstein2018signsgd,
            author = {Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar
                      and Anandkumar, Animashree},
            title = {{signSGD}: Compressed Optimisation for Non-Convex Problems},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    beta: Unit = 0.9
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            EMA(self.beta, debias=False, accumulator_dtype=self.accumulator_dtype),
            ScaleBySign(),
            self.part(ScaleByLearningRate),
        )
