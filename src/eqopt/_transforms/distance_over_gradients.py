"""Distance over gradients, leaf by leaf."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from .._core import AbstractLeafwise, Leafwise, equation
from .._trees.leaves import map_parameters
from .._trees.precision import compute_dtype
from .._types import Hyperparameter, Leaf, Params, PerLeaf, Positive, Scalar, ZeroOrMore
from ..numerics._numerics import abs_sq, safe_sqrt
from ..tree import norm
from ..tree._like import copy


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

    def init(self, params) -> ScaleByDistanceOverGradientsState:
        first = lambda p: jnp.asarray(self.reps_rel, compute_dtype(p)) * (1 + norm(p))
        return ScaleByDistanceOverGradientsState(
            max_dist=map_parameters(first, params),
            grad_sum_of_squares=map_parameters(
                lambda p: jnp.zeros((), compute_dtype(p)), params
            ),
            init_params=copy(params, self.param_dtype),
        )

    def leafwise(self, state: ScaleByDistanceOverGradientsState, params=None, **extra):
        reads = {"init_params": state.init_params}
        return Leafwise(distance_over_gradients, state, reads=reads)
