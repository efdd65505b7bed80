"""NorMuon: orthogonal steps with a separate length for each row."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._arguments.checks import check_fields
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers
from ..._transforms.weight_decay import WeightDecay
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    Scalar,
    ScalarOrSchedule,
    Size,
    Unit,
    Updates,
    ZeroOrMore,
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

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          O_t &= \operatorname{NS}(\hat\mu_t) \\
          \nu_t &= \beta_2 \nu_{t-1}
                   + (1 - \beta_2) \operatorname{mean}_{\text{columns}} |O_t|^2 &
          \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
          u_t &= s\, \frac{\|O_t\|_F}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
        \end{aligned}$$

        where $\hat\mu_t = \mu_t$, and $\operatorname{NS}$ and $s$ are the iteration and
        the factor of [`eqopt.Orthogonalize`][], with $\varepsilon = 10^{-7}$ in
        $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $G_t$ is the gradient. At the start, $\mu_0 = \nu_0 = 0$. $\beta$ is `beta`
        (0.95), $\beta_2$ is `b2` (0.95), $\varepsilon$ is `eps` (1e-10), $s$ is `scale`
        (`"shape"`). By default, `nesterov` is `True`.

    The moments need no bias correction, because the norm is restored at the end.
    Parameters that are not matrices pass unchanged and have no state.

    **Arguments:**

    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to the number of rows, or to 5 for a single
        row. If there are more steps than rows, the rows start again; Polar Express,
        CANS and DeepSeek repeat the last row.
    - `beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-10.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `side`: which side has second moments: `"rows"` for the outputs, as in the paper;
        or `"long"` for the longer side of the matrix (rows if both are equal). Defaults
        to `"rows"`.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"shape"`.
    - `ns_dtype`: the dtype of the iteration, called `dtype` in
        [`eqopt.Orthogonalize`][]. By default, it is bfloat16 on accelerators, for the
        coefficients that are listed there.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
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
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-10
    nesterov: bool = True
    side: Side = eqx.field(static=True, default="rows")
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self) -> None:
        check_fields(self)
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

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          O_t &= \operatorname{NS}(\hat\mu_t) \\
          \nu_t &= \beta_2 \nu_{t-1}
                   + (1 - \beta_2) \operatorname{mean}_{\text{columns}} |O_t|^2 &
          \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
          u_t &= s\, \frac{\|O_t\|_F}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
        \end{aligned}$$

        where $\hat\mu_t = \mu_t$, and $\operatorname{NS}$ and $s$ are the iteration and
        the factor of [`eqopt.Orthogonalize`][], with $\varepsilon = 10^{-7}$ in
        $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByNorMuon`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95),
        $\beta_2$ is `b2` (0.95), $\varepsilon$ is `eps` (1e-10), $\lambda$ is
        `weight_decay` (0.0), $s$ is `scale` (`"shape"`). By default, `nesterov` is
        `True`. Parameters that are not matrices use `fallback`, by default
        [`eqopt.AdamW`][].

    In addition to the momentum, the state has one number per row.

    !!! example

        ```python
        opt = eqopt.NorMuon(0.02)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.02.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
    - `beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-10.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `side`: which side has second moments: `"rows"` for the outputs, as in the paper;
        or `"long"` for the longer side of the matrix (rows if both are equal). Defaults
        to `"rows"`.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"shape"`.
    - `ns_dtype`: the dtype of the iteration. Defaults to `None`: a CPU then iterates in
        float32, and accelerators in bfloat16 with the coefficients `"standard"`,
        `"dion"`, `"polar_express"`, `"aol"`, `"deepseek"` and `"simple"`. With other
        coefficients, and for matrices that are complex or in float64, the matrix keeps
        its dtype.
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

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-10
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
