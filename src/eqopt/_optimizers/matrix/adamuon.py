"""AdaMuon: orthogonal steps, divided elementwise by the root of a second moment."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._transforms.normalize import or_1
from ..._types import (
    Mask,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Size,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_norm
from ..moments import root_plus
from .orthogonalize import AbstractMomentumState, AbstractOrthogonal
from .parts.eigenbasis import Matrix, RealMatrix
from .parts.newton_schulz import Coefficients, NewtonSchulz
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


class ScaleByAdaMuonState(AbstractMomentumState):
    r"""The momentum and the second moment of the orthogonal updates.

    **Attributes:**

    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    - `nu`: the mean of the squares of the orthogonal updates, a tree like `mu`.
    """

    nu: Nonnegative


@equation
def adamuon(
    g: Matrix,
    mu: Matrix,
    nu: RealMatrix,
    *,
    newton_schulz: NewtonSchulz,
    beta,
    eps,
    consistent_rms,
    nesterov,
) -> tuple[Matrix, Matrix, RealMatrix]:
    mu = beta * mu + (1 - beta) * g
    o = newton_schulz(jnp.sign(beta * mu + (1 - beta) * g if nesterov else mu))
    nu = beta * nu + (1 - beta) * abs_sq(o)
    u = o / root_plus(nu, eps)
    norm = consistent_rms * math.sqrt(g.size)
    return norm / or_1(safe_norm(u, 0) + eps) * u, mu, nu


class ScaleByAdaMuon(AbstractOrthogonal):
    r"""Orthogonalizes the signs of the momentum, then divides by a second moment.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          O_t &= \operatorname{NS}(\operatorname{sign}(\hat\mu_t)) \\
          \nu_t &= \beta \nu_{t-1} + (1 - \beta)\, |O_t|^2 &
          \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
          u_t &= \frac{\rho \sqrt{m n}}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
        \end{aligned}$$

        where $\hat\mu_t = \mu_t$, the matrix has $m$ rows and $n$ columns, and
        $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $G_t$ is the gradient. At the start, $\mu_0 = \nu_0 = 0$. $\beta$ is `beta`
        (0.95), $\varepsilon$ is `eps` (1e-8), $\rho$ is `consistent_rms` (0.2). By
        default, `nesterov` is `True`.

    All updates have the root mean square $\rho$, so the moments need no bias correction.
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
    - `beta`: $\beta \in [0, 1)$, the decay of both moments. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `consistent_rms`: $\rho \ge 0$. With 0.2, you can use learning rates for Adam.
        Defaults to 0.2.
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
        @article{si2025adamuon,
            author = {Si, Chongjie and Zhang, Debing and Shen, Wei},
            title = {{AdaMuon}: Adaptive {Muon} Optimizer},
            journal = {arXiv:2507.11005},
            year = {2025},
        }
        ```
    """

    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    nesterov: bool = True
    consistent_rms: ZeroOrMore = 0.2
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    _rows = "first"

    def init(self, params: Params) -> ScaleByAdaMuonState:
        return ScaleByAdaMuonState(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, abs_sq),
        )

    def matrixwise(
        self, state: ScaleByAdaMuonState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(adamuon, state, {"newton_schulz": self._newton_schulz()})


class AdaMuon(AbstractMatrixRecipe):
    r"""AdaMuon: orthogonal steps for matrices, with elementwise step sizes.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          O_t &= \operatorname{NS}(\operatorname{sign}(\hat\mu_t)) \\
          \nu_t &= \beta \nu_{t-1} + (1 - \beta)\, |O_t|^2 &
          \hat O_t &= O_t / (\sqrt{\nu_t} + \varepsilon) \\
          u_t &= \frac{\rho \sqrt{m n}}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t
        \end{aligned}$$

        where $\hat\mu_t = \mu_t$, the matrix has $m$ rows and $n$ columns, and
        $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdaMuon`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95),
        $\varepsilon$ is `eps` (1e-8), $\lambda$ is `weight_decay` (0.01), $\rho$ is
        `consistent_rms` (0.2). By default, `nesterov` is `True`. Parameters that are
        not matrices use `fallback`, by default [`eqopt.AdamW`][].

    The state is as large as Adam's.

    !!! example

        ```python
        opt = eqopt.AdaMuon(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use 0.02
        by default. Learning rates for Adam should also work.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
    - `beta`: $\beta \in [0, 1)$, the decay of both moments. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `consistent_rms`: $\rho \ge 0$. With 0.2, you can use learning rates for Adam.
        Defaults to 0.2.
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

    **When to use it:** like Muon, with the learning rates and schedules of AdamW. Its
    authors report that large language models train more than 40 % more efficiently than
    with Adam. On eqopt's small workloads, it rarely reaches the loss of AdamW. It has
    as much state as Adam.

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

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.01
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    consistent_rms: ZeroOrMore = 0.2
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByAdaMuon
