"""SGDP: momentum without steps along weights whose norm has no effect."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._transforms.weight_decay import WeightDecay, decayed
from ..._types import (
    ClosedUnit,
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...tree._like import wide_zeros_like
from ..moments import counted
from ..recipe import ScaleByLearningRate, decay_of, shared_decay, with_own_decay
from .projection import Weight, leaves_of, projected


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
    momentum,
    dampening,
    eps,
    delta,
    wd_ratio,
    weight_decay,
    cautious,
    nesterov,
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

    - `momentum`: $\beta \in [0, 1)$. Defaults to 0.0.
    - `dampening`: $\tau \in [0, 1]$. With $\tau = \beta$, $m$ is a mean. Defaults to
        0.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `delta`: $\delta \ge 0$, the allowed deviation of gradients from orthogonality.
        With 0, nothing is projected. Defaults to 0.1.
    - `wd_ratio`: $r$, the factor of the decay of weights that are projected: a number
        or a 0-d array. Defaults to 0.1.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to the dtype of
        each parameter, at least float32.
    - `weight_dimension_numbers`: the parameters that are weights, as in
        [`eqopt.ScaleByMuon`][], which also says when they are required: `None` in a
        tree means no projection. By default, the vectors of an `eqx.nn.Embedding` are
        also outputs.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`; a `ValueError` or `TypeError` that names the key path if the dimension numbers
    do not fit the parameters.
    """

    momentum: Unit = 0.0
    dampening: ClosedUnit = 0.0
    eps: ZeroOrMore = 1e-8
    delta: ZeroOrMore = 0.1
    wd_ratio: Hyperparameter = 0.1
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleBySGDPState:
        leaves_of(self, params, is_required=True)
        decay_of(self).init(params)  # raises an error without a rate that it needs
        trace = wide_zeros_like(params, self.accumulator_dtype)
        return ScaleBySGDPState(jnp.zeros((), jnp.int32), trace)

    def leafwise(
        self, state: ScaleBySGDPState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"leaf": leaves_of(self, params)}
        shared = shared_decay(self, state.count)
        return counted(self, sgdp, state, reads=reads, **shared)


class SGDP(AbstractOptimizer):
    r"""SGDP: SGD for networks with normalization layers.

    !!! abstract "One step"

        $$m_t = \beta m_{t-1} + (1 - \tau)\, g_t, \qquad
          u_t = \Pi_t(d_t) + \frac{\lambda \rho_t}{1 - \beta}\, p_{t-1},$$

        with $d_t = m_t$, or $d_t = g_t + \beta m_t$ with `nesterov`. $\Pi_t$ removes
        the part that is parallel to the weights $w$:

        $$\Pi_t(d) = d - \frac{\langle w, d \rangle}{(\|w\| + \varepsilon)^2}\, w,
          \qquad \rho_t = r, \qquad
          \text{if } \max_w \frac{|\langle w, g_t \rangle|}{\|w\| \|g_t\|} <
          \frac{\delta}{\sqrt{\dim w}},$$

        where $w$ are first the weights of each output of the layer (rows). If the
        condition does not hold for them, $w$ is the weight of the whole layer. If it
        does not hold for that either, $\Pi_t(d) = d$ and $\rho_t = 1$, as for biases,
        scales and other arrays.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleBySGDP`][], which includes the weight
        decay.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `momentum` (0.0), $\tau$ is
        `dampening` (0.0), $\varepsilon$ is `eps` (1e-8), $\delta$ is `delta` (0.1), $r$
        is `wd_ratio` (0.1), $\lambda$ is `weight_decay` (0.0). By default, `nesterov`
        is `False`.

    !!! example

        ```python
        opt = eqopt.SGDP(0.1)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `momentum`: $\beta \in [0, 1)$. Defaults to 0.0.
    - `dampening`: $\tau \in [0, 1]$. With $\tau = \beta$, $m$ is a mean. Defaults to
        0.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `delta`: $\delta \ge 0$, the allowed deviation of gradients from orthogonality.
        With 0, nothing is projected. Defaults to 0.1.
    - `wd_ratio`: $r$, the factor of the decay of weights that are projected: a number
        or a 0-d array. Defaults to 0.1.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `accumulator_dtype`: the dtype in which $m$ is stored. Defaults to `None`, which
        means the dtype of each parameter, at least float32.
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

    **When to use it:** instead of SGD with momentum and weight decay, for the same
    networks. Pass `momentum=0.9`: without momentum, there is little to remove. Its
    authors report gains on all of 13 benchmarks of images, sound and language, for it
    or for AdamP.

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
    momentum: Unit = 0.0
    dampening: ClosedUnit = 0.0
    eps: ZeroOrMore = 1e-8
    delta: ZeroOrMore = 0.1
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
