"""Optimistic Adam: expects the next update to change like the last one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.checks import check_scalar
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise
from ..._transforms.scale import at, negative, recorded
from ..._types import Hyperparameter, Params, Recorded, ScalarOrSchedule, Updates
from ...numerics import safe_increment
from ...tree._like import wide_zeros_like
from ..sgd.optimistic import optimistic
from .adam import ScaleByAdam


class DescendOptimisticallyState(eqx.Module):
    """The states of `ScaleByLearningRate` and `ScaleByOptimisticGradient` combined."""

    count: Int[Array, ""]
    learning_rate: Recorded
    previous_gradient: Updates


class DescendOptimistically(AbstractLeafwise):
    r"""$u_t = -\eta_t\, g_t - o_t\, (g_t - g_{t-1})$, where $o_t$ may equal $\eta_t$.

    One transformation instead of two: dividing $o_t$ by a learning rate that is applied
    later would fail for a learning rate of zero.
    """

    _descends = True

    learning_rate: ScalarOrSchedule
    optimism: ScalarOrSchedule | None = None

    def __check_init__(self):
        for name in ("learning_rate", "optimism"):
            if getattr(self, name) is not None:
                check_scalar(self, name)

    def init(self, params: Params) -> DescendOptimisticallyState:
        count = jnp.zeros((), jnp.int32)
        eta = recorded(at(self, "learning_rate", count))
        return DescendOptimisticallyState(count, eta, wide_zeros_like(params))

    def leafwise(
        self,
        state: DescendOptimisticallyState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        eta = at(self, "learning_rate", state.count)
        optimism = eta if self.optimism is None else at(self, "optimism", state.count)
        is_first = state.count == 0
        return Leafwise(
            optimistic,
            DescendOptimisticallyState(
                safe_increment(state.count),
                recorded(eta, state.learning_rate),
                state.previous_gradient,
            ),
            {"alpha": negative(eta), "beta": negative(optimism), "is_first": is_first},
        )


class OptimisticAdam(AbstractOptimizer):
    r"""Adam with optimism, for adversarial training and other games.

    $$p_t = p_{t-1} - \eta_t\, u_t - o_t\, (u_t - u_{t-1}), \qquad u_0 = u_1,$$

    where $u_t$ is the update of [`eqopt.ScaleByAdam`][], which has the equations.

    It spirals into saddle points, while plain Adam circles them.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `optimism`: $o$, a number, a 0-d array or a schedule. Defaults to $\eta$, as in
        the paper.
    - `nesterov`: whether to use Nesterov momentum; the paper does not.
    - All others: see [`eqopt.ScaleByAdam`][].

    ??? cite "Reference"

        ```bibtex
        @inproceedings{daskalakis2018training,
            author = {Daskalakis, Constantinos and Ilyas, Andrew and Syrgkanis, Vasilis
                      and Zeng, Haoyang},
            title = {Training {GAN}s with Optimism},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    optimism: ScalarOrSchedule | None = None
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    eps_root: Hyperparameter = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(self.part(ScaleByAdam), self.part(DescendOptimistically))
