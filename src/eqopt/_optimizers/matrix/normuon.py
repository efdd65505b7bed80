"""NorMuon: orthogonal steps with a separate length for each row."""

from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers
from ..._transforms.normalize import or_1, zero_if_infinite
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    PerLeaf,
    ScalarOrSchedule,
    Size,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_norm, safe_sqrt
from .orthogonalize import AbstractMomentumState, AbstractOrthogonal
from .parts.eigenbasis import Matrix
from .parts.newton_schulz import SCALES, Coefficients, NewtonSchulz, Scale
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


Side: TypeAlias = Literal["rows", "long"]


class ScaleByRowRMSState(eqx.Module):
    """The mean squares of the rows.

    **Attributes:**

    - `nu`: the mean of the squares in each row so far. It has the shape of the parameter,
        with size 1 along the inputs, and is `None` for parameters that are not matrices.
    """

    nu: PerLeaf


def _axis(shape: tuple[int, ...], side: Side) -> int:
    """The axis over which the squares are averaged."""
    return 0 if side == "long" and shape[1] > shape[0] else 1


@equation
def scale_by_row_rms(
    g: Matrix, nu: Float[Array, "#m #n"], *, b2, eps, side
) -> tuple[Matrix, Float[Array, "#m #n"]]:
    nu = b2 * nu + (1 - b2) * jnp.mean(abs_sq(g), _axis(g.shape, side), keepdims=True)
    u = g / or_1(safe_sqrt(nu) + eps)
    return zero_if_infinite(safe_norm(g, 0)) / or_1(safe_norm(u, 0) + eps) * u, nu


class ScaleByRowRMS(AbstractMatrixwise):
    r"""Divides each row of a matrix by the root of its second moment; keeps the norm.

    $$\nu_t = \beta_2 \nu_{t-1}
              + (1 - \beta_2) \operatorname{mean}_{\text{columns}} |g_t|^2, \qquad
      \hat u_t = \frac{g_t}{\sqrt{\nu_t} + \varepsilon}, \qquad
      u_t = \frac{\|g_t\|_F}{\|\hat u_t\|_F + \varepsilon}\, \hat u_t$$

    A row holds the weights of one output of a layer. This is the last part of
    [`eqopt.ScaleByNorMuon`][], which has the reference, for a chain of your own. The
    moments need no bias correction, because the norm is restored at the end. The state
    has one number per row. In float32, the square of a norm above 1.8e19 overflows:
    then the update is zero. A row with such a norm stays zero in all later updates.
    Parameters that are not matrices pass unchanged and have no state.

    !!! example

        ```python
        # NorMuon without Nesterov momentum.
        eqopt.Chain(
            eqopt.EMA(0.95, debias=False),
            eqopt.Orthogonalize("polar_express"),
            eqopt.ScaleByRowRMS(0.95),
        )
        ```

    **Arguments:**

    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-10.
    - `side`: which side has second moments: `"rows"` for the outputs, as in the paper; or
        `"long"` for the longer side of the matrix (rows if both are equal). Defaults to
        `"rows"`.
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

    A `ValueError` if an argument is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.
    """

    in_batches: ClassVar[bool] = False

    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-10
    side: Side = static_choice(static=True, default="rows")
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByRowRMSState:
        return ScaleByRowRMSState(moments_of_rows(self, params))

    def matrixwise(
        self, state: ScaleByRowRMSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_row_rms, state)


def moments_of_rows(owner: Any, params: Params) -> Nonnegative:
    """Zeros for the second moments of a transformation with a `side`."""
    # A mean of nothing would not be zero.
    total = lambda x: jnp.sum(abs_sq(x), _axis(x.shape, owner.side), keepdims=True)
    return owner.for_matrices(params, total)


class ScaleByNorMuonState(AbstractMomentumState):
    r"""The momentum, and the mean squares of the rows of the orthogonal updates.

    **Attributes:**

    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    - `nu`: the mean of the squares in each row of the orthogonal updates. It has the
        shape of the parameter, with size 1 along the inputs.
    """

    nu: Nonnegative


@equation
def normuon(
    g: Matrix,
    mu: Matrix,
    nu: Float[Array, "#m #n"],
    *,
    newton_schulz: NewtonSchulz,
    beta,
    b2,
    eps,
    nesterov,
    side,
    scale,
) -> tuple[Matrix, Matrix, Float[Array, "#m #n"]]:
    mu = beta * mu + (1 - beta) * g
    o = newton_schulz(beta * mu + (1 - beta) * g if nesterov else mu)
    u, nu = scale_by_row_rms(o, nu, b2=b2, eps=eps, side=side)
    return SCALES[scale](*g.shape) * u, mu, nu


class ScaleByNorMuon(AbstractOrthogonal):
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

    def init(self, params: Params) -> ScaleByNorMuonState:
        return ScaleByNorMuonState(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=moments_of_rows(self, params),
        )

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self, state: ScaleByNorMuonState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(normuon, state, {"newton_schulz": self._newton_schulz()})


class NorMuon(AbstractMatrixRecipe):
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

    **When to use it:** like Muon. Rows that are seldom large get steps as long as the
    others, at the cost of one number of state per row. Its authors report fewer steps
    to the same loss than Muon. On eqopt's small workloads, it takes more steps than
    Muon.

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

    _part = ScaleByNorMuon
