"""AdaMuon: orthogonal steps, divided elementwise by the root of a second moment."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._arguments.checks import check_range
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractMatrixwise,
    AbstractOptimizer,
    AbstractTransformation,
    Leafwise,
    Rows,
    equation,
)
from ..._transforms.normalize import or_1
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._trees.precision import or_tiny
from ..._types import (
    Hyperparameter,
    Mask,
    Nonnegative,
    Params,
    Scalar,
    ScalarOrSchedule,
    Updates,
)
from ...numerics import abs_sq, safe_norm, safe_sqrt
from .orthogonalize import NewtonSchulz, orthogonalize_of
from .parts.coefficients import Coefficients
from .parts.recipe import matrices_and_others


class ScaleByAdaMuonState(eqx.Module):
    r"""The momentum and the second moment of the orthogonal updates.

    **Attributes:**

    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    - `nu`: the mean of the squares of the orthogonal updates, a tree like `mu`.
    """

    mu: Updates
    nu: Nonnegative


@equation
def adamuon(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    nu: Float[Array, "m n"],
    *,
    newton_schulz: NewtonSchulz,
    beta: Scalar,
    eps: Scalar,
    consistent_rms: Scalar,
    nesterov: bool,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"], Float[Array, "m n"]]:
    mu = beta * mu + (1 - beta) * g
    o = newton_schulz(jnp.sign(beta * mu + (1 - beta) * g if nesterov else mu))
    nu = beta * nu + (1 - beta) * abs_sq(o)
    u = o / (safe_sqrt(nu) + or_tiny(eps))
    norm = consistent_rms * math.sqrt(g.size)
    return norm / or_1(safe_norm(u, 0) + eps) * u, mu, nu


class ScaleByAdaMuon(AbstractMatrixwise):
    r"""Orthogonalizes the signs of the momentum, then divides by a second moment.

    $$\begin{aligned}
      \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
      O_t &= \operatorname{NS}(\operatorname{sign}(\hat\mu_t)) \\
      \nu_t &= \beta \nu_{t-1} + (1 - \beta)\, |O_t|^2 &
      \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
      u_t &= \frac{\rho \sqrt{m n}}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
    \end{aligned}$$

    where $\hat\mu_t = \mu_t$, the matrix has $m$ rows and $n$ columns, and
    $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], which has the
    equations, with $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

    With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

    All updates have the root mean square $\rho$, so the moments need no bias correction.
    Parameters that are not matrices pass unchanged and have no state.

    **Arguments:**

    - `coefficients`, `steps`: see [`eqopt.Orthogonalize`][].
    - `beta`: $\beta \in [0, 1)$, the decay of both moments.
    - `eps`: $\varepsilon \ge 0$.
    - `nesterov`: whether to use Nesterov momentum.
    - `consistent_rms`: $\rho \ge 0$. With 0.2, you can use learning rates for Adam.
    - `ns_dtype`: the dtype of the iteration, called `dtype` in
        [`eqopt.Orthogonalize`][]. By default, it is bfloat16 on accelerators, for the
        coefficients that are listed there.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @article{si2025adamuon,
            author = {Si, Chongjie and Zhang, Debing and Shen, Wei},
            title = {{AdaMuon}: Adaptive {Muon} Optimizer},
            journal = {arXiv:2507.11005},
            year = {2025},
        }
        ```
    """

    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-8
    nesterov: bool = True
    consistent_rms: Hyperparameter = 0.2
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def _rows(self) -> Rows:
        return "first"

    def __check_init__(self):
        check_range(self, "beta", 0, 1)
        check_range(self, "eps", 0)
        check_range(self, "consistent_rms", 0)
        orthogonalize_of(self)

    def init(self, params: Params) -> ScaleByAdaMuonState:
        return ScaleByAdaMuonState(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, abs_sq),
        )

    def matrixwise(
        self,
        state: ScaleByAdaMuonState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        newton_schulz = orthogonalize_of(self).newton_schulz()
        return Leafwise(adamuon, state, {"newton_schulz": newton_schulz})


class AdaMuon(AbstractOptimizer):
    r"""AdaMuon: orthogonal steps for matrices, with elementwise step sizes.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByAdaMuon`][], which has the equations and
    the reference.

    The state is as large as Adam's.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.02 by default. Learning
        rates for Adam should also work.
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - All others: see [`eqopt.ScaleByAdaMuon`][].
    """

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 0.01
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    consistent_rms: Hyperparameter = 0.2
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(ScaleByAdaMuon))
