"""Stable-SPAM: Adam with gradient spikes removed, and with resets of its moments."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike

from ..._arguments.checks import check_count
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._transforms.block import AdaClipGN, check_cosine, cosine_factor
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._trees.precision import or_tiny
from ..._types import (
    Hyperparameter,
    IntegerLike,
    Leaf,
    Mask,
    Params,
    RealLeaf,
    Scalar,
    ScalarOrSchedule,
)
from ...numerics import (
    abs_sq,
    as_float,
    bias_correction,
    safe_increment,
    safe_sqrt,
)
from ..moments import AbstractMomentsState, check_moments, counted, init_moments


class ScaleByAdamWithResetState(AbstractMomentsState):
    """The moments of the gradients since the last reset.

    **Attributes:**

    - `count`: the steps taken so far, including those before the reset, a 0-d int32
        array.
    - `mu`: the first moment, a tree like the parameters.
    - `nu`: the second moment, real also for complex parameters.
    """


@equation(elementwise=True)
def adam_with_reset(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    mu_correction: Scalar,
    nu_correction: Scalar,
    is_reset: Bool[Array, ""],
) -> tuple[Leaf, Leaf, RealLeaf]:
    mu = (1 - b1) * g + b1 * jnp.where(is_reset, 0, mu)
    nu = (1 - b2) * abs_sq(g) + b2 * jnp.where(is_reset, 0, nu)
    return mu / mu_correction / (safe_sqrt(nu / nu_correction) + or_tiny(eps)), mu, nu


class ScaleByAdamWithReset(AbstractLeafwise):
    r"""[`eqopt.ScaleByAdam`][] with moments that restart after a number of steps.

    In every step whose number is a multiple of `reset_every`, first

    $$\mu_{t-1} \leftarrow 0, \qquad \nu_{t-1} \leftarrow 0, \qquad t \leftarrow 1$$

    in the update of [`eqopt.ScaleByAdam`][], which has the equations, with
    $\bar\varepsilon = 0$.

    So the moments forget a spike, which would otherwise keep steps small for a long time
    through $\nu$.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment.
    - `eps`: $\varepsilon \ge 0$, outside the root.
    - `reset_every`: an integer of at least 1, or `None` for no reset.
    - `total_steps`: see [`eqopt.AdaClipGN`][]. The factor $s_t$ multiplies $\beta_1$.
    - `eta_min`: see [`eqopt.AdaClipGN`][].
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.
    """

    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    reset_every: IntegerLike | None = 1000
    total_steps: IntegerLike | None = None
    eta_min: Hyperparameter = 0.5
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_moments(self)
        if self.reset_every is not None:
            check_count(self, "reset_every")
        check_cosine(self)

    def init(self, params: Params) -> ScaleByAdamWithResetState:
        return init_moments(self, ScaleByAdamWithResetState, params)

    def leafwise(
        self,
        state: ScaleByAdamWithResetState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        count = safe_increment(state.count)
        is_reset, since = jnp.zeros((), bool), count
        if self.reset_every is not None:
            past = count % jnp.asarray(self.reset_every, count.dtype)
            is_reset = past == 0
            since = jnp.where(past == count, count, past + 1)
        b1 = as_float(self.b1) * cosine_factor(self, count)
        return counted(
            self,
            adam_with_reset,
            state,
            count=count,
            b1=b1,
            mu_correction=bias_correction(b1, since),
            nu_correction=bias_correction(self.b2, since),
            is_reset=is_reset,
        )


class StableSPAM(AbstractOptimizer):
    r"""Stable-SPAM: Adam with gradient spikes removed, and with resets of its moments.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where the update of [`eqopt.AdaClipGN`][] is the gradient for
    [`eqopt.ScaleByAdamWithReset`][], which have the equations and the references.

    It differs from the authors' code in two points. In that code, the step of a reset
    still averages with the old moments. And a reset restarts the bias corrections of
    $\tau$, $a$ and $b$, although these averages continue: so for a few hundred steps
    after a reset, it does not clip.

    **Arguments:**

    - `learning_rate`, `weight_decay`, `mask`: see [`eqopt.AdamW`][].
    - All others: see [`eqopt.ScaleByAdamWithReset`][] and [`eqopt.AdaClipGN`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    eps: Hyperparameter = 1e-8
    gamma1: Hyperparameter = 0.7
    gamma2: Hyperparameter = 0.9
    gamma3: Hyperparameter = 0.999
    reset_every: IntegerLike | None = 1000
    total_steps: IntegerLike | None = None
    eta_min: Hyperparameter = 0.5
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(AdaClipGN),
            self.part(ScaleByAdamWithReset),
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )
