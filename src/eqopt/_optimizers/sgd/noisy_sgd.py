"""Gradient descent with noise."""

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer
from ..._transforms.noise import AddNoise
from ..._transforms.scale import ScaleByLearningRate
from ..._types import Hyperparameter, Key, ScalarOrSchedule


class NoisySGD(AbstractOptimizer):
    r"""Gradient descent with decaying noise.

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is the update of [`eqopt.AddNoise`][], which has the equation and the
    reference.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `eta`, `gamma`: $\sigma^2, \gamma$, the variance of the noise in the first
        step, and how fast it decays.
    - `key`: a seed or a random key. Defaults to the seed 0, so the noise is the same in
        each run.
    """

    learning_rate: ScalarOrSchedule
    eta: Hyperparameter = 0.01
    gamma: Hyperparameter = 0.55
    key: Key = 0

    @property
    def chain(self) -> Chain:
        return Chain(self.part(AddNoise), self.part(ScaleByLearningRate))
