"""SGDP: momentum without steps along weights whose norm has no effect."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.checks import check_range
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import WeightDecay, decayed
from ..._trees.axes import DimensionNumbers
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    Scalar,
    ScalarOrSchedule,
    Updates,
)
from ...numerics import safe_increment
from ...tree._like import wide_zeros_like
from ..own_decay import (
    check_decay_rate,
    shared_decay,
    with_own_decay,
)
from .projection import Weight, check_projection, leaves_of, projected


class ScaleBySGDPState(eqx.Module):
    """The momentum.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `trace`: the decaying sum of the gradients, a tree like the parameters.
    """

    count: Int[Array, ""]
    trace: Updates


@equation
def sgdp(
    g: Leaf,
    trace: Leaf,
    p: Leaf,
    leaf: Weight,
    *,
    momentum: Scalar,
    dampening: Scalar,
    eps: Scalar,
    delta: Scalar,
    wd_ratio: Scalar,
    weight_decay: Scalar,
    cautious: bool,
    nesterov: bool,
) -> tuple[Leaf, Leaf]:
    trace = (1 - dampening) * g + momentum * trace
    d = g + momentum * trace if nesterov else trace
    u, rho = projected(d, g, p, leaf, delta, eps, wd_ratio)
    decay = rho * weight_decay / (1 - momentum)
    return decayed(u, p, decay, cautious) if leaf.decays else u, trace


class ScaleBySGDP(AbstractLeafwise):
    r"""Momentum without steps along weights whose norm has no effect, with decay.

    $$m_t = \beta m_{t-1} + (1 - \tau)\, g_t, \qquad
      u_t = \Pi_t(d_t) + \frac{\lambda \rho_t}{1 - \beta}\, p_{t-1},$$

    with $d_t = m_t$. The projection $\Pi_t$ and the factor $\rho_t$ are explained in
    [`eqopt.ScaleByAdamP`][], which has the reference.

    With `nesterov`, $d_t = g_t + \beta m_t$.

    The decay is divided by $1 - \beta$, as if it were part of the momentum.

    As in the paper, $m$ is not projected. The authors' code projects it, but only
    without Nesterov.

    **Arguments:**

    - `momentum`: $\beta \in [0, 1)$.
    - `dampening`: $\tau \in [0, 1]$. With $\tau = \beta$, $m$ is a mean.
    - `nesterov`: whether to use Nesterov momentum.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.
    - All others: see [`eqopt.ScaleByAdamP`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`; a `ValueError` or `TypeError` that names the key path if the dimension numbers
    do not fit the parameters.
    """

    momentum: Hyperparameter = 0.0
    dampening: Hyperparameter = 0.0
    eps: Hyperparameter = 1e-8
    delta: Hyperparameter = 0.1
    wd_ratio: Hyperparameter = 0.1
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "momentum", 0, 1)
        check_range(self, "dampening", 0, 1, includes_high=True)
        check_range(self, "eps", 0)
        check_projection(self)

    def init(self, params: Params) -> ScaleBySGDPState:
        leaves_of(self, params, is_required=True)
        check_decay_rate(self)
        return ScaleBySGDPState(
            jnp.zeros((), jnp.int32), wide_zeros_like(params, self.accumulator_dtype)
        )

    def leafwise(
        self, state: ScaleBySGDPState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        shared = shared_decay(self, state.count)
        state = ScaleBySGDPState(safe_increment(state.count), state.trace)
        reads = {"leaf": leaves_of(self, params)}
        return Leafwise(sgdp, state, shared, reads)


class SGDP(AbstractOptimizer):
    r"""SGDP: SGD for networks with normalization layers.

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is the update of [`eqopt.ScaleBySGDP`][], which has the equations. It
    includes the weight decay.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - All others: see [`eqopt.ScaleBySGDP`][].
    """

    learning_rate: ScalarOrSchedule
    momentum: Hyperparameter = 0.0
    dampening: Hyperparameter = 0.0
    eps: Hyperparameter = 1e-8
    delta: Hyperparameter = 0.1
    wd_ratio: Hyperparameter = 0.1
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def chain(self) -> Chain:
        projected = with_own_decay(self, ScaleBySGDP)
        return Chain(projected, self.part(ScaleByLearningRate))
