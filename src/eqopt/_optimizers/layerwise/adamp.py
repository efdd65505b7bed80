"""AdamP: Adam without steps along weights whose norm has no effect."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._transforms.weight_decay import WeightDecay, decayed
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    RealLeaf,
    ScalarOrSchedule,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq
from ..moments import AbstractMomentsState, counted, init_moments, root_plus
from ..recipe import ScaleByLearningRate, decay_of, shared_decay, with_own_decay
from .projection import Weight, leaves_of, projected


class ScaleByAdamPState(AbstractMomentsState):
    """The moments so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters.
    - `nu`: their second moment, real also for complex parameters.
    """


@equation
def adamp(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    p: Leaf,
    leaf: Weight,
    *,
    b1,
    b2,
    eps,
    delta,
    wd_ratio,
    weight_decay,
    cautious,
    nesterov,
    mu_correction,
    nu_correction,
) -> tuple[Leaf, Leaf, RealLeaf]:
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    m = (1 - b1) * g + b1 * mu if nesterov else mu
    d = m / mu_correction / root_plus(nu / nu_correction, eps)
    u, rho = projected(d, g, p, leaf, delta, eps, wd_ratio)
    u = decayed(u, p, rho * weight_decay, cautious) if leaf.decays else u
    return u, mu, nu


class ScaleByAdamP(AbstractLeafwise):
    r"""Adam without steps along weights whose norm has no effect, with weight decay.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
      d_t &= \frac{\mu_t}{1 - \beta_1^t} \bigg/
        \bigg(\sqrt{\frac{\nu_t}{1 - \beta_2^t}} + \varepsilon\bigg) &
      u_t &= \Pi_t(d_t) + \lambda \rho_t\, p_{t-1}
    \end{aligned}$$

    where $\Pi_t$ removes the part that is parallel to the weights $w$:

    $$\Pi_t(d) = d - \frac{\langle w, d \rangle}{(\|w\| + \varepsilon)^2}\, w, \qquad
      \rho_t = r, \qquad
      \text{if } \max_w \frac{|\langle w, g_t \rangle|}{\|w\| \|g_t\|} <
      \frac{\delta}{\sqrt{\dim w}},$$

    where $w$ are first the weights of each output of the layer (rows). If the condition
    does not hold for them, $w$ is the weight of the whole layer. If it does not hold
    for that either, $\Pi_t(d) = d$ and $\rho_t = 1$, as for biases, scales and other
    arrays.

    If a normalization follows a layer, the length of its weights has no effect on the
    loss. The gradients are orthogonal to the weights, but momentum is not: it increases
    the norm of the weights, and so makes steps relatively smaller.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `delta`: $\delta \ge 0$, the allowed deviation of gradients from orthogonality.
        With 0, nothing is projected. Defaults to 0.1.
    - `wd_ratio`: $r$, the factor of the decay of weights that are projected: a number
        or a 0-d array. Defaults to 0.1.
    - `nesterov`: whether to replace $\mu_t$ in $d_t$ by
        $\beta_1 \mu_t + (1 - \beta_1)\, g_t$. Defaults to `False`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.
    - `weight_dimension_numbers`: the parameters that are weights, as in
        [`eqopt.ScaleByMuon`][], which also says when they are required: `None` in a tree
        means no projection. By default, the vectors of an `eqx.nn.Embedding` are also
        outputs.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`; a `ValueError` or `TypeError` that names the key path if the dimension numbers
    do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{heo2021adamp,
            author = {Heo, Byeongho and Chun, Sanghyuk and Oh, Seong Joon and Han,
                      Dongyoon and Yun, Sangdoo and Kim, Gyuwan and Uh, Youngjung and
                      Ha, Jung-Woo},
            title = {{A}dam{P}: Slowing Down the Slowdown for Momentum Optimizers on
                     Scale-invariant Weights},
            booktitle = {International Conference on Learning Representations},
            year = {2021},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    delta: ZeroOrMore = 0.1
    wd_ratio: Hyperparameter = 0.1
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByAdamPState:
        leaves_of(self, params, is_required=True)  # raises if they do not fit
        decay_of(self).init(params)  # raises an error without a rate that it needs
        return init_moments(self, ScaleByAdamPState, params)

    def leafwise(
        self, state: ScaleByAdamPState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"leaf": leaves_of(self, params)}
        shared = shared_decay(self, state.count)
        return counted(self, adamp, state, reads=reads, **shared)


class AdamP(AbstractOptimizer):
    r"""AdamP: AdamW for networks with normalization layers.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 \\
          d_t &= \frac{\mu_t}{1 - \beta_1^t} \bigg/
            \bigg(\sqrt{\frac{\nu_t}{1 - \beta_2^t}} + \varepsilon\bigg) &
          u_t &= \Pi_t(d_t) + \lambda \rho_t\, p_{t-1}
        \end{aligned}$$

        where $\Pi_t$ removes the part that is parallel to the weights $w$:

        $$\Pi_t(d) = d - \frac{\langle w, d \rangle}{(\|w\| + \varepsilon)^2}\, w,
          \qquad \rho_t = r, \qquad
          \text{if } \max_w \frac{|\langle w, g_t \rangle|}{\|w\| \|g_t\|} <
          \frac{\delta}{\sqrt{\dim w}},$$

        where $w$ are first the weights of each output of the layer (rows). If the
        condition does not hold for them, $w$ is the weight of the whole layer. If it
        does not hold for that either, $\Pi_t(d) = d$ and $\rho_t = 1$, as for biases,
        scales and other arrays.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdamP`][], which includes the weight
        decay.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\delta$ is `delta`
        (0.1), $r$ is `wd_ratio` (0.1), $\lambda$ is `weight_decay` (0.0).

    !!! example

        ```python
        opt = eqopt.AdamP(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `delta`: $\delta \ge 0$, the allowed deviation of gradients from orthogonality.
        With 0, nothing is projected. Defaults to 0.1.
    - `wd_ratio`: $r$, the factor of the decay of weights that are projected: a number
        or a 0-d array. Defaults to 0.1.
    - `nesterov`: whether to replace $\mu_t$ in $d_t$ by
        $\beta_1 \mu_t + (1 - \beta_1)\, g_t$. Defaults to `False`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `weight_dimension_numbers`: which parameters are weights, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. `None` in a tree means no projection. A single
        `MatrixDimensionNumbers` applies to all arrays with at least two axes. Defaults
        to `None`, which means the weights of Equinox's linear, convolution and
        recurrent layers, the vectors of an `eqx.nn.Embedding`, which are outputs, and
        arrays with two axes (inputs first) outside the layers of `equinox.nn`. Other
        arrays with three or more axes outside these layers, such as your own stack of
        matrices, are then an error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][].

    **When to use it:** instead of AdamW for networks with normalization layers after
    the weights, such as convolutional networks. Its authors report better results on
    images, video and audio. Weights without such a layer mostly fail the test, and move
    as with AdamW.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{heo2021adamp,
            author = {Heo, Byeongho and Chun, Sanghyuk and Oh, Seong Joon and Han,
                      Dongyoon and Yun, Sangdoo and Kim, Gyuwan and Uh, Youngjung and
                      Ha, Jung-Woo},
            title = {{A}dam{P}: Slowing Down the Slowdown for Momentum Optimizers on
                     Scale-invariant Weights},
            booktitle = {International Conference on Learning Representations},
            year = {2021},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    delta: ZeroOrMore = 0.1
    wd_ratio: Hyperparameter = 0.1
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def chain(self) -> Chain:
        projected = with_own_decay(self, ScaleByAdamP)
        return Chain(projected, self.part(ScaleByLearningRate))
