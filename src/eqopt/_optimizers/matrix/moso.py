"""MOSO: RMSProp of the momentum, in the eigenbasis of its shorter side."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Inexact

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers
from ..._types import Count, Mask, Params, PerLeaf, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq, safe_increment
from ..moments import AbstractMomentsState, counted, root_plus
from .parts.eigenbasis import (
    Matrix,
    PerSide,
    RealMatrix,
    average,
    find_all,
    follow,
    from_basis,
    grams,
    identities,
    renew_if_due,
    to_basis,
)
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


class ScaleByMOSOState(AbstractMomentsState):
    r"""The momentum, its covariance, and the second moment in its eigenbasis.

    **Attributes:**

    - `count`: the number of calls so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters, with `None` for
        parameters that are not matrices.
    - `nu`: the mean of the squared momentum in the eigenbasis.
    - `factors`: for each matrix, a pair with $C$ for its shorter side and `None` for the
        other one. The side of the outputs comes first. A stack of matrices has its axes
        first.
    - `basis`: $Q^*$ for each matrix, in the same form. Its rows are the eigenvectors.
    """

    factors: PerLeaf
    basis: PerLeaf


@equation
def moso(
    g: Matrix,
    mu: Matrix,
    nu: RealMatrix,
    factors: tuple[Inexact[Array, "m m"] | None, Inexact[Array, "n n"] | None],
    basis: tuple[Inexact[Array, "m m"] | None, Inexact[Array, "n n"] | None],
    *,
    b1,
    b2,
    shampoo_beta,
    eps,
    is_first,
    is_due,
) -> tuple[Matrix, Matrix, RealMatrix, Any, Any]:
    mu = b1 * mu + (1 - b1) * g
    factors, counts = average(factors, (mu, mu), shampoo_beta, 1 - shampoo_beta)
    basis = renew_if_due(is_first, find_all, factors, basis)
    basis = renew_if_due(is_due & ~is_first, follow, factors, basis)
    x = counts.astype(g.dtype) * to_basis(mu, basis)
    nu = b2 * nu + (1 - b2) * abs_sq(x)
    u = from_basis(x / root_plus(nu, eps), basis)
    return u, mu, nu, factors, basis


class ScaleByMOSO(AbstractMatrixwise):
    r"""RMSProp of the momentum in the eigenbasis of its shorter side, for matrices.

    For each matrix $G_t$ with $m$ outputs and $n$ inputs, and $m \le n$,

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t &
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |Q_t^* \mu_t|^2 \\
      C_t &= \beta C_{t-1} + (1 - \beta)\, \mu_t \mu_t^* &
      u_t &= Q_t \left( \frac{Q_t^* \mu_t}{\sqrt{\nu_t} + \varepsilon} \right),
    \end{aligned}$$

    where the columns of $Q_t$ are the eigenvectors of $C_t$. If $m > n$, the same
    holds for the transposed matrices. The eigenvectors are computed for the first
    gradient; then they follow, every $k$ steps, by a step of orthogonal iteration, in
    the order of their Rayleigh quotients. In it, $C_t$ is shifted by $10^{-5}$ of its
    largest eigenvalue, so that directions without curvature stay where they are.

    At the start, $\mu_0 = \nu_0 = C_0 = 0$, and no moment is corrected for it: the
    first update is $1 / \sqrt{1 - \beta_2}$ times as long as later ones of equal
    gradients.

    In float32, the square of a norm above 1.8e19 overflows: such a momentum counts as
    zero. Parameters that are not matrices pass unchanged and have no state. Stacked
    matrices are transformed separately. For an $m \times n$ matrix with $m \le n$, the
    state has $2mn + 2m^2$ numbers. Derivatives through the step treat $Q$ as constant.

    **Arguments:**

    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.95.
    - `shampoo_beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 1.
    - `mu_dtype`: the dtype of $\mu$. Defaults to the parameter's, at least float32.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to
        all arrays with at least two axes. Defaults to
        [`eqopt.groups.layer_matrices`][]: the weights of Equinox's linear, convolution
        and recurrent layers, and arrays with two axes (inputs first) outside the layers
        of `equinox.nn`. Embeddings are not matrices. Other arrays with three or more
        axes outside these layers, such as your own stack of matrices, are then an
        error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @misc{nvidia2026moso,
            author = {{NVIDIA}},
            title = {Emerging-Optimizers: {MOSO}},
            url = {https://github.com/NVIDIA-NeMo/Emerging-Optimizers},
            year = {2026},
        }
        ```
    """

    _stays: ClassVar[bool] = True
    _sized = (("factors", "_grams"),)
    _work = "QR"

    b1: Unit = 0.95
    b2: Unit = 0.95
    shampoo_beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    precondition_frequency: Count = 1
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByMOSOState:
        return ScaleByMOSOState(
            jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, abs_sq),
            factors=self.for_matrices(params, self._grams),
            basis=self.for_matrices(params, lambda x: identities(self._grams(x))),
        )

    def _grams(self, x: Any) -> PerSide:
        return grams(x, one_sided=True)

    def matrixwise(
        self, state: ScaleByMOSOState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        is_due = count % jnp.int32(self.precondition_frequency) == 0
        is_first = state.count == 0
        return counted(self, moso, state, count=count, is_first=is_first, is_due=is_due)


class MOSO(AbstractMatrixRecipe):
    r"""MOSO: one-sided SOAP of the momentum.

    !!! abstract "One step"

        For each matrix $G_t$ with $m$ outputs and $n$ inputs, and $m \le n$,

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |Q_t^* \mu_t|^2 \\
          C_t &= \beta C_{t-1} + (1 - \beta)\, \mu_t \mu_t^* &
          u_t &= Q_t \left( \frac{Q_t^* \mu_t}{\sqrt{\nu_t} + \varepsilon} \right),
        \end{aligned}$$

        where the columns of $Q_t$ are the eigenvectors of $C_t$. If $m > n$, the same
        holds for the transposed matrices. The eigenvectors are computed for the first
        gradient; then they follow, every $k$ steps, by a step of orthogonal iteration, in
        the order of their Rayleigh quotients. In it, $C_t$ is shifted by $10^{-5}$ of
        its largest eigenvalue, so that directions without curvature stay where they are.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1})$$

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = C_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.95),
        $\beta_2$ is `b2` (0.95), $\beta$ is `shampoo_beta` (0.95), $\varepsilon$ is `eps`
        (1e-8), $\lambda$ is `weight_decay` (0.01), $k$ is `precondition_frequency` (1).
        Parameters that are not matrices use `fallback`, by default [`eqopt.AdamW`][].

    No moment is corrected for its start at zero: the first update is
    $1 / \sqrt{1 - \beta_2}$ times as long as later ones of equal gradients. Begin with a
    warm-up. Derivatives through the step treat $Q$ as constant.

    !!! example

        ```python
        opt = eqopt.MOSO(3e-4)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. NVIDIA's code uses
        0.0003 by default.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.95.
    - `shampoo_beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 1.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to
        all arrays with at least two axes. Defaults to `None`, which means
        [`eqopt.groups.layer_matrices`][]: the weights of Equinox's linear, convolution
        and recurrent layers, and arrays with two axes (inputs first) outside the layers
        of `equinox.nn`. Embeddings are not matrices. Other arrays with three or more
        axes outside these layers, such as your own stack of matrices, are then an
        error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][].
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        `None`, which means [`eqopt.AdamW`][] with the same `learning_rate`,
        `weight_decay` and `mask`, and with $\beta_2 = 0.95$. Your own has its own
        decay.

    **When to use it:** like SOAP, where its state is too large: only the shorter side has
    eigenvectors, and one matrix is decomposed instead of two. With $k = 1$, NVIDIA's
    default, each step does this for each matrix; with 10, it is about a tenth of the
    work. Do not use it where SOAP fits: on eqopt's small workloads, SOAP takes fewer
    steps.

    ??? cite "Reference"

        ```bibtex
        @misc{nvidia2026moso,
            author = {{NVIDIA}},
            title = {Emerging-Optimizers: {MOSO}},
            url = {https://github.com/NVIDIA-NeMo/Emerging-Optimizers},
            year = {2026},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.95
    b2: Unit = 0.95
    shampoo_beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.01
    precondition_frequency: Count = 1
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByMOSO
