"""Gradient descent that reveals little about any single example."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer
from ..._transforms.privacy import DifferentiallyPrivateAggregate
from ..._types import Hyperparameter, Key, ScalarOrSchedule
from .sgd import SGD


class DPSGD(AbstractOptimizer):
    r"""Differentially private gradient descent, private only with the right gradients.

    Without `clipped`, they are per-example gradients, with an additional first axis.
    With `clipped=True`, they are the sum from [`eqopt.microbatching.clipped_grad`][].
    A mean, or a gradient that is not clipped, looks like such a sum: it gives no
    privacy, and no error. Do not put it inside [`eqopt.SkipStep`][] or
    [`eqopt.ApplyIfFinite`][]: they decide by the gradients before the noise, which
    reveals something about the data.

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is the noisy mean of clipped per-example gradients of
    [`eqopt.DifferentiallyPrivateAggregate`][], which has the equation and the reference.

    With `momentum`, it is the $m_t$ of [`eqopt.Trace`][] for this mean.

    !!! example

        ```python
        opt = eqopt.DPSGD(0.1, 1.0, 1.1, key=0, batch_size=256, clipped=True)
        grads, _ = clipped_grad(loss, 1.0, weights=is_real)(model, batch)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `l2_norm_clip`, `noise_multiplier`, `key`, `batch_size`, `clipped`: see
        [`eqopt.DifferentiallyPrivateAggregate`][].
    - `momentum`, `nesterov`, `accumulator_dtype`: see [`eqopt.SGD`][].
    """

    learning_rate: ScalarOrSchedule
    l2_norm_clip: Hyperparameter
    noise_multiplier: Hyperparameter
    key: Key
    momentum: Hyperparameter | None = None
    nesterov: bool = False
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    batch_size: Hyperparameter | None = None
    clipped: bool = eqx.field(static=True, default=False)

    @property
    def chain(self) -> Chain:
        return Chain(self.part(DifferentiallyPrivateAggregate), self.part(SGD))
