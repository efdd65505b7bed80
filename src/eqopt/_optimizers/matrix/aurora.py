"""Aurora: orthogonal steps with rows of equal length."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Inexact

from ..._arguments.checks import check_count, check_range
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractMatrixwise,
    AbstractOptimizer,
    AbstractTransformation,
    Leafwise,
    equation,
)
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._types import Hyperparameter, Mask, Params, Scalar, ScalarOrSchedule, Updates
from ...numerics import abs_sq, safe_norm
from .orthogonalize import SCALES, NewtonSchulz, Scale, orthogonalize_of
from .parts.coefficients import Coefficients
from .parts.eigenbasis import short_side
from .parts.recipe import matrices_and_others


class ScaleByAuroraState(eqx.Module):
    """`mu`: the mean of the gradients so far; `None` for leaves that are not matrices."""

    mu: Updates


class Balanced(eqx.Module):
    """Orthogonalizes a matrix so that its rows have about equal length.

    **Attributes:**

    - `newton_schulz`: the iteration.
    - `iterations`: how often to run it. The rows are rescaled before each run.
    """

    newton_schulz: NewtonSchulz
    iterations: int = eqx.field(static=True)

    def __call__(self, x: Any, power: Any, eps: Any) -> Any:
        n, m = sorted(x.shape)
        along = short_side(x.shape)  # the rows of the equations are the longer side
        u = x
        if m > n:
            norms = safe_norm(x, 0, axis=along, keepdims=True)
            # Zero rows stay zero, and their derivatives are finite.
            x = x / jnp.where(norms == 0, 1, jnp.maximum(norms, eps))
        for i in range(self.iterations if m > n else 1):
            if i > 0:
                squares = jnp.sum(abs_sq(u), along, keepdims=True)
                least = jnp.maximum(squares, eps * eps)
                x = x * jnp.where(squares == 0, 1, n / m / least) ** power
            u = self.newton_schulz(x)
        return u


@equation
def aurora(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    *,
    balanced: Balanced,
    beta: Scalar,
    pp_beta: Scalar,
    eps: Scalar,
    nesterov: bool,
    scale: str,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"]]:
    mu = beta * mu + (1 - beta) * g
    u = balanced(beta * mu + (1 - beta) * g if nesterov else mu, pp_beta, eps)
    return SCALES[scale](*g.shape) * u, mu


class ScaleByAurora(AbstractMatrixwise):
    r"""Orthogonalizes the momentum so that its rows have about equal length.

    For a matrix with $m$ outputs and $n$ inputs, $m > n$, let

    $$\begin{aligned}
      \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
      d_1 &= 1 / \|(\hat\mu_t)_{i:}\| \\
      U_k &= \operatorname{NS}(\operatorname{diag}(d_k)\, \hat\mu_t) &
      d_{k+1} &= d_k \left( \frac{n / m}{\|(U_k)_{i:}\|^2} \right)^b &
      u_t &= s\, U_K
    \end{aligned}$$

    where $\hat\mu_t = \mu_t$, and $\operatorname{NS}$ and $s$ are the iteration and the
    factor of [`eqopt.Orthogonalize`][], which has the equations, with
    $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

    With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

    The columns of $U_K$ are orthonormal. Its rows have norms near $\sqrt{n / m}$, and
    get closer to it with larger $K$. A matrix with $m < n$ is transposed. For $m = n$,
    the rows of orthogonal matrices already have length 1, and
    $u_t = s \operatorname{NS}(\hat\mu_t)$. Norms below $\varepsilon$ count as
    $\varepsilon$, and zero rows stay zero. Parameters that are not matrices pass
    unchanged and have no state.

    **Arguments:**

    - `coefficients`: see [`eqopt.Orthogonalize`][]. `"simple"` is accurate.
    - `steps`, `scale`: see [`eqopt.Orthogonalize`][].
    - `beta`: $\beta \in [0, 1)$.
    - `pp_iterations`: $K$, a Python integer of at least 1: the number of times that
        $\operatorname{NS}$ runs.
    - `pp_beta`: $b \in [0, 1]$.
    - `eps`: $\varepsilon \ge 0$.
    - `nesterov`: whether to use Nesterov momentum.
    - `ns_dtype`: see [`eqopt.ScaleByAdaMuon`][].
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @article{dewulf2026aurora,
            author = {Dewulf, Alec and Pai, Dhruv and Yang, Li and Zhang, Ashley and
                      Keigwin, Ben},
            title = {{Aurora}: A Leverage-Aware Spectral Optimizer},
            journal = {arXiv:2606.27715},
            year = {2026},
        }
        ```
    """

    coefficients: Coefficients = "simple"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    pp_iterations: int = static_choice(static=True, default=2)
    pp_beta: Hyperparameter = 0.5
    eps: Hyperparameter = 1e-7
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "beta", 0, 1)
        check_count(self, "pp_iterations")
        check_range(self, "pp_beta", 0, 1, includes_high=True)
        check_range(self, "eps", 0)
        orthogonalize_of(self)

    def init(self, params: Params) -> ScaleByAuroraState:
        return ScaleByAuroraState(self.for_matrices(params, lambda x: x, self.mu_dtype))

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self, state: ScaleByAuroraState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        newton_schulz = orthogonalize_of(self).newton_schulz()
        balanced = Balanced(newton_schulz, self.pp_iterations)
        return Leafwise(aurora, state, {"balanced": balanced})


class Aurora(AbstractOptimizer):
    r"""Aurora: orthogonal steps for matrices, with rows of about equal length.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByAurora`][], which has the equations and
    the reference.

    The state holds only the momentum.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.05.
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - All others: see [`eqopt.ScaleByAurora`][].
    """

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "simple"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    pp_iterations: int = static_choice(static=True, default=2)
    pp_beta: Hyperparameter = 0.5
    eps: Hyperparameter = 1e-7
    weight_decay: WeightDecay = 0.025
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(ScaleByAurora))
