"""NAMO: orthogonal steps whose length adapts to the noise of the gradients."""

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers, Rows
from ..._transforms.normalize import or_1, zero_if_infinite
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import WeightDecay, decayed
from ..._trees.masks import both
from ..._types import Mask, Params, ScalarOrSchedule, Size, Unit, UpToOne, ZeroOrMore
from ...numerics._numerics import (
    abs_sq,
    bias_correction,
    safe_increment,
    safe_norm,
    safe_sqrt,
)
from ..adam.adam import ScaleByAdam
from ..moments import AbstractMomentsState
from ..recipe import Decays, decay_of, read_decay, shared_decay, with_own_decay
from .orthogonalize import AbstractOrthogonal
from .parts.eigenbasis import Matrix
from .parts.newton_schulz import Coefficients, NewtonSchulz
from .parts.recipe import are_matrices, are_others


Per: TypeAlias = Literal["matrix", "column"]
Factor: TypeAlias = Float[Array, "1 #n"]


class ScaleByNAMOState(AbstractMomentsState):
    r"""The momentum, and the mean square of the norms of the gradients.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    - `nu`: the mean of the squared norms of the gradients of each matrix, or of each of
        its columns. It has the shape of the parameter, with size 1 along the outputs,
        and along the inputs if there is one number per matrix.
    """


@equation
def namo(
    g: Matrix,
    mu: Matrix,
    nu: Factor,
    p: Matrix,
    decays: Decays,
    *,
    newton_schulz: NewtonSchulz,
    beta,
    b2,
    eps,
    correction,
    nesterov,
    consistent_rms,
    per,
    clamp,
    weight_decay,
    cautious,
) -> tuple[Matrix, Matrix, Factor]:
    mu = beta * mu + (1 - beta) * g
    mean = beta * mu + (1 - beta) * g if nesterov else mu
    axes = _AXES[per]
    nu = b2 * nu + (1 - b2) * jnp.sum(abs_sq(g), axes, keepdims=True)
    norm = zero_if_infinite(safe_norm(mean, 0, axis=axes, keepdims=True))
    factor = correction * norm / or_1(safe_sqrt(nu) + eps)
    if per == "column":
        center = jnp.mean(factor)
        factor = jnp.clip(factor, clamp * center, center / clamp)
    u = consistent_rms * math.sqrt(max(g.shape)) * newton_schulz(mean)
    u = decayed(u, p, weight_decay, cautious) if decays.is_on else u
    return factor * u, mu, nu


# What the norms are summed over.
_AXES = {"matrix": (0, 1), "column": 0}


class ScaleByNAMO(AbstractOrthogonal):
    r"""Orthogonalizes the momentum; the ratio of its norm to the gradients is the length.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, \|G_t\|_F^2 \\
          O_t &= \operatorname{NS}(\hat\mu_t) &
          \alpha_t &= \frac{\sqrt{1 - \beta_2^t}}{1 - \beta^t} \cdot
                      \frac{\|\hat\mu_t\|_F}{\sqrt{\nu_t} + \varepsilon}
        \end{aligned}$$

        $$u_t = \alpha_t\, (s\, O_t + \lambda p_{t-1}), \qquad
          s = \rho \sqrt{\max(m, n)},$$

        where $\hat\mu_t = \mu_t$, $m \times n$ is the shape of the matrix, and
        $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        With `per="column"` (NAMO-D), each column $j$ has a second moment and a factor,
        computed from the norms of the columns of $G_t$ and $\hat\mu_t$. The factors are
        then clipped to $[\kappa\, \bar\alpha_t, \bar\alpha_t / \kappa]$, where
        $\bar\alpha_t$ is their mean.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\beta$ is `beta` (0.95), $\beta_2$ is `b2` (0.99),
        $\varepsilon$ is `eps` (1e-8), $\rho$ is `consistent_rms` (0.2), $\kappa$ is
        `clamp` (0.75), $\lambda$ is `weight_decay` (0.0). By default, `nesterov` is
        `True`, and `per` is `"matrix"`.

    $\alpha_t$ is near 1 if all gradients are equal, and falls with their noise. It does
    not depend on their scale. In float32, the square of a norm above 1.8e19 overflows:
    then this and all later updates are zero. Parameters that are not matrices pass
    unchanged and have no state.

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
    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which matrices decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `consistent_rms`: $\rho \ge 0$. With 0.2, the updates are about as large as
        with Adam. Defaults to 0.2.
    - `per`: whether each `"matrix"` or each `"column"` (NAMO-D) has a factor. A column
        holds the weights of one input of a layer. Defaults to `"matrix"`.
    - `clamp`: $\kappa \in (0, 1]$, how close the factors of columns are to their mean.
        With 1, all are equal. A single factor does not depend on it. Defaults to 0.75.
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
    `ValueError` with the key path if the dimension numbers do not fit the parameters. In
    `update`, a `ValueError` if there is a decay and `params` is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{zhang2026namo,
            author = {Zhang, Minxin and Liu, Yuxuan and Schaeffer, Hayden},
            title = {{Adam} Improves {Muon}: Adaptive Moment Estimation with
                     Orthogonalized Momentum},
            journal = {arXiv:2602.17080},
            year = {2026},
        }
        ```
    """

    _sized = (("nu", "_squares"),)

    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    consistent_rms: ZeroOrMore = 0.2
    per: Per = eqx.field(static=True, default="matrix")
    clamp: UpToOne = 0.75
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def _rows(self) -> Rows:
        return "outputs" if self.per == "column" else "first"  # if so, sides are alike

    def _squares(self, x: Matrix) -> Factor:
        return jnp.sum(abs_sq(x), _AXES[self.per], keepdims=True)

    def init(self, params: Params) -> ScaleByNAMOState:
        decay_of(self).init(params)  # raises an error without a rate that it needs
        return ScaleByNAMOState(
            count=jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, self._squares),
        )

    def matrixwise(
        self, state: ScaleByNAMOState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        root = safe_sqrt(bias_correction(self.b2, count))
        shared = {
            "newton_schulz": self._newton_schulz(),
            "correction": root / bias_correction(self.beta, count),
            **shared_decay(self, state.count),
        }
        new = ScaleByNAMOState(count, state.mu, state.nu)
        return Leafwise(namo, new, shared, read_decay(self, state, params))


class NAMO(AbstractOptimizer):
    r"""NAMO: Muon with steps whose length adapts to the noise of the gradients.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta \mu_{t-1} + (1 - \beta)\, G_t &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, \|G_t\|_F^2 \\
          O_t &= \operatorname{NS}(\hat\mu_t) &
          \alpha_t &= \frac{\sqrt{1 - \beta_2^t}}{1 - \beta^t} \cdot
                      \frac{\|\hat\mu_t\|_F}{\sqrt{\nu_t} + \varepsilon}
        \end{aligned}$$

        $$u_t = \alpha_t\, (s\, O_t + \lambda p_{t-1}), \qquad
          s = \rho \sqrt{\max(m, n)},$$

        where $\hat\mu_t = \mu_t$, $m \times n$ is the shape of the matrix, and
        $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        With `nesterov`, $\hat\mu_t = \beta \mu_t + (1 - \beta)\, G_t$.

        With `per="column"` (NAMO-D), each column $j$ has a second moment and a factor,
        computed from the norms of the columns of $G_t$ and $\hat\mu_t$. The factors are
        then clipped to $[\kappa\, \bar\alpha_t, \bar\alpha_t / \kappa]$, where
        $\bar\alpha_t$ is their mean.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByNAMO`][], which includes the weight
        decay.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95),
        $\beta_2$ is `b2` (0.99), $\varepsilon$ is `eps` (1e-8), $\rho$ is
        `consistent_rms` (0.2), $\kappa$ is `clamp` (0.75), $\lambda$ is `weight_decay`
        (0.1). By default, `nesterov` is `True`, and `per` is `"matrix"`. Parameters that
        are not matrices use `fallback`, by default [`eqopt.AdamW`][].

    In addition to the momentum, the state has one number per matrix, or per column with
    `per="column"`. Without weight decay, [`eqopt.Muon`][] is this method with
    $\alpha_t = 1$.

    !!! example

        ```python
        opt = eqopt.NAMO(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use 0.01
        by default.
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
    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.99.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.1.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `consistent_rms`: $\rho \ge 0$. With 0.2, the updates are about as large as
        with Adam. Defaults to 0.2.
    - `per`: whether each `"matrix"` or each `"column"` (NAMO-D) has a factor. A column
        holds the weights of one input of a layer. Defaults to `"matrix"`.
    - `clamp`: $\kappa \in (0, 1]$, how close the factors of columns are to their mean.
        With 1, all are equal. A single factor does not depend on it. Defaults to 0.75.
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

    **When to use it:** like Muon, if gradients are noisy: the steps become shorter when
    the noise grows relative to the momentum. `per="column"` (NAMO-D) adapts each column.
    Its authors report lower losses of GPT-2 than with Muon and AdamW. On eqopt's small
    workloads, it needs fewer steps than Muon on the language model, the digits and the
    tumours. Do not use it for gradients with little noise, where its steps are about as
    long as with Muon. It never reaches the target on the heat equation, whose gradients
    have none.

    ??? cite "Reference"

        ```bibtex
        @article{zhang2026namo,
            author = {Zhang, Minxin and Liu, Yuxuan and Schaeffer, Hayden},
            title = {{Adam} Improves {Muon}: Adaptive Moment Estimation with
                     Orthogonalized Momentum},
            journal = {arXiv:2602.17080},
            year = {2026},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.1
    mask: Mask | None = static_choice(default=None)
    nesterov: bool = True
    consistent_rms: ZeroOrMore = 0.2
    per: Per = eqx.field(static=True, default="matrix")
    clamp: UpToOne = 0.75
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        of_matrices = with_own_decay(self, ScaleByNAMO)
        others, descend = are_others(self), self.part(ScaleByLearningRate)
        if self.fallback is not None:
            descend = Masked(descend, are_matrices(self))
            return Chain(of_matrices, descend, Masked(self.fallback, others))
        decay = decay_of(self)
        mask = others if decay.mask is None else both(others, decay.mask)
        decay = dataclasses.replace(decay, mask=mask)
        return Chain(of_matrices, Masked(ScaleByAdam(b2=0.95), others), decay, descend)
