"""NorMuon: orthogonal steps with a separate length for each row."""

from typing import Any, get_args

import equinox as eqx
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._arguments.checks import check_choice, check_range
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
from ..._types import (
    Hyperparameter,
    Mask,
    Nonnegative,
    Params,
    Scalar,
    ScalarOrSchedule,
    Updates,
)
from .orthogonalize import SCALES, NewtonSchulz, Scale, orthogonalize_of
from .parts.coefficients import Coefficients
from .parts.recipe import matrices_and_others
from .parts.row_rms import Side, moments_of_rows, scale_by_row_rms


class ScaleByNorMuonState(eqx.Module):
    r"""The momentum, and the mean squares of the rows of the orthogonal updates.

    **Attributes:**

    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    - `nu`: the mean of the squares in each row of the orthogonal updates. It has the
        shape of the parameter, with size 1 along the inputs.
    """

    mu: Updates
    nu: Nonnegative


@equation
def normuon(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    nu: Float[Array, "#m #n"],
    *,
    newton_schulz: NewtonSchulz,
    beta: Scalar,
    b2: Scalar,
    eps: Scalar,
    nesterov: bool,
    side: Side,
    scale: str,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"], Float[Array, "#m #n"]]:
    mu = beta * mu + (1 - beta) * g
    o = newton_schulz(beta * mu + (1 - beta) * g if nesterov else mu)
    u, nu = scale_by_row_rms(o, nu, b2=b2, eps=eps, side=side)
    return SCALES[scale](*g.shape) * u, mu, nu


class ScaleByNorMuon(AbstractMatrixwise):
    r"""Orthogonal updates, with each row divided by the root of its second moment.

    $$\begin{aligned}
      \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
      O_t &= \operatorname{NS}(\hat\mu_t) \\
      \nu_t &= \beta_2 \nu_{t-1}
               + (1 - \beta_2) \operatorname{mean}_{\text{columns}} |O_t|^2 &
      \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
      u_t &= s\, \frac{\|O_t\|_F}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
    \end{aligned}$$

    where $\hat\mu_t = \mu_t$, and $\operatorname{NS}$ and $s$ are the iteration and the
    factor of [`eqopt.Orthogonalize`][], which has the equations, with
    $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

    With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

    The moments need no bias correction, because the norm is restored at the end.
    Parameters that are not matrices pass unchanged and have no state.

    **Arguments:**

    - `coefficients`, `steps`, `scale`: see [`eqopt.Orthogonalize`][].
    - `beta`: $\beta \in [0, 1)$.
    - `b2`: $\beta_2 \in [0, 1)$.
    - `eps`: $\varepsilon \ge 0$.
    - `nesterov`: whether to use Nesterov momentum.
    - `side`: see [`eqopt.ScaleByRowRMS`][].
    - `ns_dtype`: see [`eqopt.ScaleByAdaMuon`][].
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @article{li2025normuon,
            author = {Li, Zichong and Liu, Liming and Liang, Chen and Chen, Weizhu and
                      Zhao, Tuo},
            title = {{NorMuon}: Making {Muon} More Efficient and Scalable},
            journal = {arXiv:2510.05491},
            year = {2025},
        }
        ```
    """

    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    b2: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-10
    nesterov: bool = True
    side: Side = eqx.field(static=True, default="rows")
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "beta", 0, 1)
        check_range(self, "b2", 0, 1)
        check_range(self, "eps", 0)
        check_choice(self, "side", get_args(Side))
        orthogonalize_of(self)

    def init(self, params: Params) -> ScaleByNorMuonState:
        return ScaleByNorMuonState(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=moments_of_rows(self, params),
        )

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self,
        state: ScaleByNorMuonState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        newton_schulz = orthogonalize_of(self).newton_schulz()
        return Leafwise(normuon, state, {"newton_schulz": newton_schulz})


class NorMuon(AbstractOptimizer):
    r"""NorMuon: orthogonal steps for matrices, with a separate length for each row.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByNorMuon`][], which has the equations and
    the reference.

    In addition to the momentum, the state has one number per row.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.02.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options.
    - `mask`: see [`eqopt.Muon`][].
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        [`eqopt.AdamW`][] with the same `learning_rate`, `weight_decay` and `mask`, and
        with $\beta_2 = 0.95$. Your own has its own decay.
    - All others: see [`eqopt.ScaleByNorMuon`][].
    """

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    beta: Hyperparameter = 0.95
    b2: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-10
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    side: Side = eqx.field(static=True, default="rows")
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(ScaleByNorMuon))
