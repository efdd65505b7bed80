"""Aurora: orthogonal steps with rows of equal length."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._types import ClosedUnit, Mask, Params, ScalarOrSchedule, Size, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq, safe_norm
from .orthogonalize import AbstractMomentumState, AbstractOrthogonal
from .parts.eigenbasis import Matrix, short_side
from .parts.newton_schulz import SCALES, Coefficients, NewtonSchulz, Scale
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


class ScaleByAuroraState(AbstractMomentumState):
    """`mu`: the mean of the gradients so far; `None` for leaves that are not matrices."""


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
    g: Matrix, mu: Matrix, *, balanced: Balanced, beta, pp_beta, eps, nesterov, scale
) -> tuple[Matrix, Matrix]:
    mu = beta * mu + (1 - beta) * g
    u = balanced(beta * mu + (1 - beta) * g if nesterov else mu, pp_beta, eps)
    return SCALES[scale](*g.shape) * u, mu


class ScaleByAurora(AbstractOrthogonal):
    r"""Orthogonalizes the momentum so that its rows have about equal length.

    !!! abstract "One step"

        For a matrix with $m$ outputs and $n$ inputs, $m > n$, let

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          d_1 &= 1 / \|(\hat\mu_t)_{i:}\| \\
          U_k &= \operatorname{NS}(\operatorname{diag}(d_k)\, \hat\mu_t) &
          d_{k+1} &= d_k \left( \frac{n / m}{\|(U_k)_{i:}\|^2} \right)^b &
          u_t &= s\, U_K
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

        $G_t$ is the gradient. At the start, $\mu_0 = 0$. $\beta$ is `beta` (0.95), $K$
        is `pp_iterations` (2), $b$ is `pp_beta` (0.5), $\varepsilon$ is `eps` (1e-7),
        $s$ is `scale` (`"shape"`). By default, `nesterov` is `True`.

    The columns of $U_K$ are orthonormal. Its rows have norms near $\sqrt{n / m}$, and
    get closer to it with larger $K$. A matrix with $m < n$ is transposed. For $m = n$,
    the rows of orthogonal matrices already have length 1, and
    $u_t = s \operatorname{NS}(\hat\mu_t)$. Norms below $\varepsilon$ count as
    $\varepsilon$, and zero rows stay zero. Parameters that are not matrices pass
    unchanged and have no state.

    **Arguments:**

    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1.
        `"simple"` is accurate. Defaults to `"simple"`.
    - `steps`: the number of steps. Defaults to the number of rows, or to 5 for a single
        row. If there are more steps than rows, the rows start again; Polar Express,
        CANS and DeepSeek repeat the last row.
    - `beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `pp_iterations`: $K$, a Python integer of at least 1: the number of times that
        $\operatorname{NS}$ runs. Defaults to 2.
    - `pp_beta`: $b \in [0, 1]$. Defaults to 0.5.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-7.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
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
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    pp_iterations: Size = static_choice(static=True, default=2)
    pp_beta: ClosedUnit = 0.5
    eps: ZeroOrMore = 1e-7
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByAuroraState:
        return ScaleByAuroraState(self.for_matrices(params, lambda x: x, self.mu_dtype))

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self, state: ScaleByAuroraState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        balanced = Balanced(self._newton_schulz(), self.pp_iterations)
        return Leafwise(aurora, state, {"balanced": balanced})


class Aurora(AbstractMatrixRecipe):
    r"""Aurora: orthogonal steps for matrices, with rows of about equal length.

    !!! abstract "One step"

        For a matrix with $m$ outputs and $n$ inputs, $m > n$, let

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          d_1 &= 1 / \|(\hat\mu_t)_{i:}\| \\
          U_k &= \operatorname{NS}(\operatorname{diag}(d_k)\, \hat\mu_t) &
          d_{k+1} &= d_k \left( \frac{n / m}{\|(U_k)_{i:}\|^2} \right)^b &
          u_t &= s\, U_K
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

        where $u_t$ is the update of [`eqopt.ScaleByAurora`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95), $K$ is
        `pp_iterations` (2), $b$ is `pp_beta` (0.5), $\varepsilon$ is `eps` (1e-7),
        $\lambda$ is `weight_decay` (0.025), $s$ is `scale` (`"shape"`). By default,
        `nesterov` is `True`. Parameters that are not matrices use `fallback`, by
        default [`eqopt.AdamW`][].

    The state holds only the momentum.

    !!! example

        ```python
        opt = eqopt.Aurora(0.05)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.05.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1.
        `"simple"` is accurate. Defaults to `"simple"`.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
    - `beta`: $\beta \in [0, 1)$. Defaults to 0.95.
    - `pp_iterations`: $K$, a Python integer of at least 1: the number of times that
        $\operatorname{NS}$ runs. Defaults to 2.
    - `pp_beta`: $b \in [0, 1]$. Defaults to 0.5.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-7.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.025.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
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

    **When to use it:** like Muon, if matrices are far from square, as in the hidden
    layers of a transformer's perceptrons. Its authors report that all neurons continue
    to learn there, while some stop under Muon, and that the gain grows with the width.
    A step costs five times as many matrix products as a step of Muon.

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

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "simple"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    pp_iterations: Size = static_choice(static=True, default=2)
    pp_beta: ClosedUnit = 0.5
    eps: ZeroOrMore = 1e-7
    weight_decay: WeightDecay = 0.025
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="shape")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByAurora
