"""Scaling and clipping by the size of a block: a leaf, such as the weight of a layer."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from .._core import AbstractLeafwise, AbstractStateless, Leafwise, equation
from .._trees.leaves import map_parameters
from .._trees.precision import compute_dtype
from .._types import (
    ClosedUnit,
    Count,
    Hyperparameter,
    Leaf,
    Params,
    PerLeaf,
    Positive,
    Scalar,
    Unit,
    ZeroOrMore,
)
from ..numerics._numerics import (
    abs_sq,
    as_float,
    bias_correction,
    max_or_nan,
    safe_increment,
    safe_sqrt,
)
from ..tree import norm
from ..tree._like import copy
from .normalize import or_1, power_of_two, zero_if_infinite


def block_norm(x: Leaf) -> Scalar:
    """The norm of one leaf as a vector; its gradient is 0 at 0."""
    return safe_sqrt(jnp.sum(abs_sq(x)))


def block_rms(x: Leaf) -> Scalar:
    """The root of the mean square of one leaf; its gradient is 0 at 0."""
    return safe_sqrt(jnp.mean(abs_sq(x)))


@equation
def scale_by_param_norm(g: Leaf, p: Leaf, *, min_scale) -> Leaf:
    return zero_if_infinite(jnp.maximum(block_norm(p), min_scale)) * g


@equation
def scale_by_param_rms(g: Leaf, p: Leaf, *, min_scale) -> Leaf:
    return zero_if_infinite(jnp.maximum(block_rms(p), min_scale)) * g


@equation
def clip_rms(g: Leaf, *, threshold) -> Leaf:
    return g / jnp.maximum(1, block_rms(g) / threshold)


class ScaleByParamBlockNorm(AbstractStateless):
    r"""Multiplies the update of each leaf by the norm of its parameters.

    $$u = \max(\|p\|_2, s)\, g$$

    In float32, the square of a norm above 1.8e19 overflows: then the update is zero.

    **Arguments:**

    - `min_scale`: $s \ge 0$. If positive, parameters can start at zero. Defaults to
        0.001.

    **Raises:**

    A `ValueError` if `min_scale` is negative, and in `update` if `params` is `None`.
    """

    min_scale: ZeroOrMore = 1e-3

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_param_norm)


class ScaleByParamBlockRMS(AbstractStateless):
    r"""Multiplies the update of each leaf by the root mean square of its parameters.

    $$u = \max(\operatorname{RMS}(p), s)\, g, \qquad
      \operatorname{RMS}(p)^2 = \operatorname{mean}_i |p_i|^2$$

    Unlike the norm, the root mean square does not grow with the number of parameters.
    In float32, the square of a norm above 1.8e19 overflows: then the update is zero.

    **Arguments:**

    - `min_scale`: $s \ge 0$. If positive, parameters can start at zero. Defaults to
        0.001.

    **Raises:**

    A `ValueError` if `min_scale` is negative, and in `update` if `params` is `None`.
    """

    min_scale: ZeroOrMore = 1e-3

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_param_rms)


class ClipByBlockRMS(AbstractStateless):
    r"""Scales the update of a leaf down if its root mean square is too large.

    $$u = g \Big/ \max\!\left(1, \frac{\operatorname{RMS}(g)}{d}\right), \qquad
      \operatorname{RMS}(g)^2 = \operatorname{mean}_i |g_i|^2$$

    Each leaf is clipped separately; [`eqopt.ClipByGlobalNorm`][] clips all of them
    together. A NaN in a leaf makes all of its updates NaN. An infinity becomes NaN, and
    the other updates of the leaf become zero.

    **Arguments:**

    - `threshold`: $d > 0$.

    **Raises:**

    A `ValueError` if `threshold` is not positive.
    """

    threshold: Positive

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(clip_rms)


class AdaClipGNState(eqx.Module):
    """The running means for each leaf: a 0-d real array for each parameter.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `max_abs`: the mean of the largest moduli.
    - `norm`: the mean of the norms, after clipping.
    - `norm_sq`: the mean of their squares.
    """

    count: Int[Array, ""]
    max_abs: PerLeaf
    norm: PerLeaf
    norm_sq: PerLeaf


@equation
def clip_and_scale(
    g: Leaf,
    max_abs: Scalar,
    norm: Scalar,
    norm_sq: Scalar,
    *,
    gamma1,
    gamma2,
    gamma3,
    eps,
    correction1,
    correction2,
    correction3,
) -> tuple[Leaf, Scalar, Scalar, Scalar]:
    modulus = safe_sqrt(abs_sq(g)) if jnp.iscomplexobj(g) else jnp.abs(g)
    largest = max_or_nan(modulus, initial=0)
    max_abs = gamma3 * max_abs + (1 - gamma3) * largest
    threshold = max_abs / correction3
    share = threshold / or_1(largest)
    g = jnp.where(modulus > threshold, g * share, g)
    unit = power_of_two(jnp.minimum(largest, threshold))
    own = unit * block_norm(g / unit)
    # Otherwise, one spike would make the averages infinite forever.
    seen = jnp.minimum(own, math.sqrt(jnp.finfo(own.dtype).max) / 2)
    norm = gamma1 * norm + (1 - gamma1) * seen
    norm_sq = gamma2 * norm_sq + (1 - gamma2) * seen**2
    root = safe_sqrt(norm_sq / correction2) + eps
    scale = norm / correction1 / or_1(root) / or_1(own)
    return g * jnp.where(own == 0, 1, scale), max_abs, norm, norm_sq


class AdaClipGN(AbstractLeafwise):
    r"""Clips spikes of each leaf, then scales its norm by the usual norm.

    It applies AdaClip, then AdaGN. AdaClip compares the elements of a leaf with the
    mean $\tau$ of its past maxima:

    $$\begin{aligned}
      \tau_t &= \gamma_3 \tau_{t-1} + (1 - \gamma_3) \max_i |g_{t,i}| &
      \hat\tau_t &= \tau_t / (1 - \gamma_3^t) \\
      c_{t,i} &= \begin{cases}
        g_{t,i}\, \hat\tau_t / \max_j |g_{t,j}| & \text{if } |g_{t,i}| > \hat\tau_t \\
        g_{t,i} & \text{otherwise}
      \end{cases}
    \end{aligned}$$

    AdaGN scales the leaf to a norm of about one, and to less if its norm has varied:

    $$\begin{aligned}
      a_t &= \gamma_1 a_{t-1} + (1 - \gamma_1)\, \|c_t\| &
      \hat a_t &= a_t / (1 - \gamma_1^t) \\
      b_t &= \gamma_2 b_{t-1} + (1 - \gamma_2)\, \|c_t\|^2 &
      \hat b_t &= b_t / (1 - \gamma_2^t) \\
      u_t &= \frac{c_t}{\|c_t\|} \cdot
        \frac{\hat a_t}{\sqrt{\hat b_t} + \varepsilon}
    \end{aligned}$$

    where $c_t = 0$ stays zero.

    With `total_steps`, $\gamma_1$ is multiplied by a factor that falls from 1 to $s$ and
    then stays constant. For $t \le T + 1$, it is

    $$s_t = s + \tfrac12 (1 - s) \left(1 + \cos \frac{\pi t}{T + 1}\right).$$

    Put it before an optimizer: [`eqopt.StableSPAM`][] uses it before Adam.

    **Arguments:**

    - `gamma1`: $\gamma_1 \in [0, 1)$, the decay of the norm. Defaults to 0.7.
    - `gamma2`: $\gamma_2 \in [0, 1)$, the decay of its square. Defaults to 0.9.
    - `gamma3`: $\gamma_3 \in [0, 1)$, the decay of the largest modulus. Defaults to
        0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `total_steps`: $T$, an integer of at least 1, or `None` for $s_t = 1$.
    - `eta_min`: $s \in [0, 1]$. Defaults to 0.5.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{huang2025stable,
            author = {Huang, Tianjin and Hu, Haotian and Zhang, Zhenyu and Jin, Gaojie
                      and Li, Xiang and Shen, Li and Chen, Tianlong and Liu, Lu and
                      Wen, Qingsong and Wang, Zhangyang and Liu, Shiwei},
            title = {{Stable-SPAM}: How to Train in 4-Bit More Stably than 16-Bit Adam},
            journal = {arXiv:2502.17055},
            year = {2025},
        }
        ```
    """

    gamma1: Unit = 0.7
    gamma2: Unit = 0.9
    gamma3: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    total_steps: Count | None = None
    eta_min: ClosedUnit = 0.5

    def init(self, params: Params) -> AdaClipGNState:
        zero = lambda x: jnp.zeros((), compute_dtype(x))
        zeros = lambda: map_parameters(zero, params)
        return AdaClipGNState(jnp.zeros((), jnp.int32), zeros(), zeros(), zeros())

    def leafwise(
        self, state: AdaClipGNState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        gamma1 = as_float(self.gamma1) * cosine_factor(self, count)
        gammas = gamma1, self.gamma2, self.gamma3
        shared = {
            f"correction{i}": bias_correction(gamma, count)
            for i, gamma in enumerate(gammas, start=1)
        }
        state = AdaClipGNState(count, state.max_abs, state.norm, state.norm_sq)
        return Leafwise(clip_and_scale, state, {"gamma1": gamma1, **shared})


def cosine_factor(owner: Any, count: Int[Array, ""]) -> Any:
    """The factor of a decay at step `count`, which falls from 1 to `eta_min`."""
    if owner.total_steps is None:
        return 1.0
    end = 1.0 + as_float(owner.total_steps)
    part = jnp.minimum(jnp.asarray(count, jnp.result_type(float)) / end, 1.0)
    low = as_float(owner.eta_min)
    return low + (1 - low) * (1 + jnp.cos(jnp.pi * part)) / 2


@equation
def trust_ratio(g: Leaf, p: Leaf, *, min_norm, trust_coefficient, eps) -> Leaf:
    p_norm, g_norm = (jnp.maximum(block_norm(x), min_norm) for x in (p, g))
    is_zero = (p_norm == 0) | (g_norm == 0)
    ratio = trust_coefficient * p_norm / jnp.where(is_zero, 1, g_norm + eps)
    return jnp.where(is_zero, 1, ratio) * g


class ScaleByTrustRatio(AbstractStateless):
    r"""Scales the update of each leaf to the norm of its parameters, times a constant.

    $$u = \frac{c \max(\|p\|_2, m)}{\max(\|g\|_2, m) + \varepsilon}\; g,$$

    with the norms of each leaf separately. If one of them is zero, $u = g$, so that
    parameters that start at zero can move.

    **Arguments:**

    - `min_norm`: $m \ge 0$, the lower bound of both norms. Defaults to 0.0.
    - `trust_coefficient`: $c$, a number or a 0-d array. Defaults to 1.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 0.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`.

    ??? cite "Reference"

        ```bibtex
        @article{you2017large,
            author = {You, Yang and Gitman, Igor and Ginsburg, Boris},
            title = {Large Batch Training of Convolutional Networks},
            journal = {arXiv:1708.03888},
            year = {2017},
        }
        ```
    """

    min_norm: ZeroOrMore = 0.0
    trust_coefficient: Hyperparameter = 1.0
    eps: ZeroOrMore = 0.0

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(trust_ratio)


class ScaleByDistanceOverGradientsState(eqx.Module):
    """The distance that each leaf has moved, and the sums of its squared gradients.

    **Attributes:**

    - `max_dist`: the largest distance from `init_params` so far, a 0-d array for each
        leaf.
    - `grad_sum_of_squares`: the sum of the squared norms of all gradients, a 0-d array
        for each leaf.
    - `init_params`: the parameters passed to `init`.
    """

    max_dist: PerLeaf
    grad_sum_of_squares: PerLeaf
    init_params: Params


@equation
def distance_over_gradients(
    g: Leaf,
    max_dist: Scalar,
    grad_sum_of_squares: Scalar,
    init_params: Leaf,
    p: Leaf,
    *,
    eps: Scalar,
    global_scale: Scalar,
) -> tuple[Leaf, Scalar, Scalar]:
    distance = safe_sqrt(abs_sq(p - init_params).sum())
    max_dist = jnp.maximum(max_dist, distance)
    grad_sum_of_squares = grad_sum_of_squares + abs_sq(g).sum()
    denominator = safe_sqrt(grad_sum_of_squares + eps)
    denominator = jnp.where(denominator == 0, 1, denominator)  # then g is zero, too
    return global_scale * max_dist / denominator * g, max_dist, grad_sum_of_squares


class ScaleByDistanceOverGradients(AbstractLeafwise):
    r"""Scales each leaf by its distance from the start divided by its gradient norms.

    $$\begin{aligned}
      \bar r_t &= \max\big(\bar r_{t-1},\, \|p_{t-1} - p_0\|_2\big), \quad
        \bar r_0 = \alpha\, (1 + \|p_0\|_2) \\
      G_t &= G_{t-1} + \|g_t\|_2^2, \qquad
        u_t = s\, \frac{\bar r_t}{\sqrt{G_t + \varepsilon}}\, g_t
    \end{aligned}$$

    for each leaf separately. This is LDoG, the layer-wise variant of DoG: see
    [`eqopt.DoG`][] for the reference.

    **Arguments:**

    - `reps_rel`: $\alpha > 0$; $10^{-6}$, or $10^{-4}$ for models with batch
        normalization. Defaults to 1e-6.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `param_dtype`: the dtype in which $p_0$ is stored. `None` means the dtype of each
        parameter.
    - `global_scale`: $s$, a number or a 0-d array. With $-1$, no
        [`eqopt.ScaleByLearningRate`][] is needed. Defaults to 1.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.
    """

    reps_rel: Positive = 1e-6
    eps: ZeroOrMore = 1e-8
    param_dtype: DTypeLike | None = eqx.field(static=True, default=jnp.float32)
    global_scale: Hyperparameter = 1.0

    def init(self, params: Params) -> ScaleByDistanceOverGradientsState:
        first = lambda p: jnp.asarray(self.reps_rel, compute_dtype(p)) * (1 + norm(p))
        zero = lambda p: jnp.zeros((), compute_dtype(p))
        return ScaleByDistanceOverGradientsState(
            max_dist=map_parameters(first, params),
            grad_sum_of_squares=map_parameters(zero, params),
            init_params=copy(params, self.param_dtype),
        )

    def leafwise(
        self,
        state: ScaleByDistanceOverGradientsState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        reads = {"init_params": state.init_params}
        return Leafwise(distance_over_gradients, state, reads=reads)
