"""The sign of the gradient, or of its running mean."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_range
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractStateless, Leafwise, equation
from ..._transforms.average import EMA
from ..._transforms.scale import ScaleByLearningRate
from ..._types import Hyperparameter, Leaf, Params, ScalarOrSchedule


@equation(elementwise=True)
def sign(g: Leaf) -> Leaf:
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


class SignSGD(AbstractOptimizer):
    r"""Gradient descent that uses only the signs of the gradient.

    $$p_t = p_{t-1} - \eta_t \operatorname{sign}(g_t)$$

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. Every parameter moves by exactly this amount
        in each step, so use a decaying schedule.

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

    @property
    def chain(self) -> Chain:
        return Chain(ScaleBySign(), self.part(ScaleByLearningRate))


class Signum(AbstractOptimizer):
    r"""[`eqopt.SignSGD`][] with momentum.

    $$m_t = \beta m_{t-1} + (1 - \beta)\, g_t, \qquad
      p_t = p_{t-1} - \eta_t \operatorname{sign}(m_t)$$

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.

    **Raises:**

    A `ValueError` if `beta` is out of its range.

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
    beta: Hyperparameter = 0.9
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "beta", 0, 1)

    @property
    def chain(self) -> Chain:
        return Chain(
            EMA(self.beta, debias=False, accumulator_dtype=self.accumulator_dtype),
            ScaleBySign(),
            self.part(ScaleByLearningRate),
        )
