"""Muown: Muon turns the rows of a matrix, and Adam changes their norms."""

from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._transforms.normalize import or_1
from ..._transforms.scale import at, recorded, take_rate
from ..._types import (
    Nonnegative,
    Params,
    Recorded,
    ScalarOrSchedule,
    Size,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_sqrt
from ..adam.adam import AdamW
from ..moments import counted, root_plus
from .orthogonalize import AbstractOrthogonal
from .parts.eigenbasis import Matrix
from .parts.newton_schulz import SCALES, Coefficients, NewtonSchulz, Scale
from .parts.recipe import are_others


class ScaleByMuownState(eqx.Module):
    r"""The moments, and the lengths of the directions.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `learning_rate`: see [`eqopt.ScaleByLearningRateState`][].
    - `mu`: the mean of the gradients of the directions $V$ so far, a tree like the
        parameters, with `None` for parameters that are not matrices.
    - `lengths`: the norms of the rows of $V$; 0 before the first step. They have the
        shapes of the parameters, with size 1 along the inputs.
    - `gain_mu`, `gain_nu`: Adam's moments of the gradients of the gains $a$, of the same
        shapes as `lengths`.
    """

    count: Int[Array, ""]
    learning_rate: Recorded
    mu: Updates
    lengths: Nonnegative
    gain_mu: Updates
    gain_nu: Nonnegative


Column: TypeAlias = Float[Array, "m 1"]


def _norms(x: Matrix) -> Column:
    return safe_sqrt(jnp.sum(abs_sq(x), 1, keepdims=True))


@equation
def muown(
    g: Matrix,
    mu: Matrix,
    lengths: Column,
    gain_mu: Column,
    gain_nu: Column,
    p: Matrix,
    *,
    newton_schulz: NewtonSchulz,
    learning_rate,
    weight_decay,
    beta,
    b1,
    b2,
    eps,
    mu_correction,
    nu_correction,
    nesterov,
    scale,
) -> tuple[Matrix, Matrix, Column, Column, Column]:
    gains = _norms(p)
    is_zero = gains == 0
    rows = p / or_1(gains)  # of norm 1
    lengths = jnp.where(lengths == 0, gains, lengths)
    of_gains = jnp.sum((jnp.conj(rows) * g).real, 1, keepdims=True)
    of_rows = g - of_gains * rows
    of_rows = jnp.where(is_zero, of_rows, gains * (of_rows / or_1(lengths)))
    mu = beta * mu + (1 - beta) * of_rows
    direction = beta * mu + (1 - beta) * of_rows if nesterov else mu
    o = SCALES[scale](*g.shape) * newton_schulz(direction)
    v = lengths * rows - learning_rate * o
    lengths = _norms(v)
    gain_mu = b1 * gain_mu + (1 - b1) * of_gains
    gain_nu = b2 * gain_nu + (1 - b2) * of_gains**2
    adam = gain_mu / mu_correction / root_plus(gain_nu / nu_correction, eps)
    gains = gains - learning_rate * (adam + weight_decay * gains)
    # A negative gain is a positive one of the opposite direction: so it will be seen.
    turns = ~is_zero & (gains < 0)
    mu, gain_mu = jnp.where(turns, -mu, mu), jnp.where(turns, -gain_mu, gain_mu)
    w = jnp.where(is_zero, v, gains * (v / or_1(lengths)))
    return w - p, mu, lengths, gain_mu, gain_nu


class ScaleByMuown(AbstractOrthogonal):
    r"""Orthogonal steps for the directions of rows, and steps of Adam for their norms.

    Each row $i$ of a matrix is $w_i = a_i v_i / \|v_i\|$, with a gain $a_i$ and a vector
    $v_i$ (weight normalization). At the start, $v_0 = w_0$ and $a_0 = \|w_0\|$. For the
    gradient $g$ of $w$, and with the products row by row,

    $$\begin{aligned}
      \nabla a &= \langle g, w / a \rangle &
      \nabla v &= \frac{a}{\|v\|} \left(g - \frac{w}{a} \nabla a\right) \\
      \mu_t &= \beta \mu_{t-1} + (1 - \beta) \nabla v &
      v_t &= v_{t-1} - \eta_t\, s \operatorname{NS}(\hat\mu_t) \\
      d_t &= \operatorname{Adam}(\nabla a) &
      a_t &= a_{t-1} - \eta_t\, (d_t + \lambda a_{t-1}) \\
      & & u_t &= a_t\, \frac{v_t}{\|v_t\|} - w_{t-1}
    \end{aligned}$$

    where $\hat\mu_t = \mu_t$, or $\beta \mu_t + (1 - \beta) \nabla v$ with Nesterov
    momentum. $\operatorname{NS}$ and $s$ are defined in [`eqopt.Orthogonalize`][].

    The update points downhill and includes the learning rate: do not multiply it by
    another one. `eqopt.tree.get(state, "learning_rate")` returns the current learning
    rate. Parameters that are not matrices pass unchanged and have no state.

    As $\nabla v$ is orthogonal to $v$, the norms of $v$ grow, and the angle by which a
    step turns a row falls. The state has these norms, but neither $v$ nor $a$, which
    follow from the parameters. So the parameters may be changed by others, such as
    [`eqopt.QKClip`][]. (If a gain becomes negative, $a$, $v$, $\mu$ and Adam's mean of
    its gradients change their signs, which leaves all later steps the same.) A row of
    zeros has no direction, and takes the step $-\eta_t\, s \operatorname{NS}(\hat\mu_t)$.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array, or a schedule: a schedule of
        [`eqopt.schedules`][] or any function of the number of steps taken so far. The
        authors use 1e-3.
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
    - `b1`, `b2`: the decay of Adam's moments, in $[0, 1)$. Default to 0.9 and 0.95.
    - `eps`: $\varepsilon \ge 0$ of Adam. Defaults to 1e-8.
    - `weight_decay`: $\lambda \ge 0$. Only gains decay. Defaults to 0.0.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"match_rms"`.
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
    `update`, a `ValueError` if `params` is `None`.

    ??? cite "Reference"

        The authors' code without weight decay; their decay also turns the rows. In
        NVIDIA's Emerging-Optimizers, gains decay as here, but after the step of Adam, and
        there is no Nesterov momentum.

        ```bibtex
        @article{lion2026muown,
            author = {Lion, Kai and H{\"u}bler, Florian and Li, Bingcong and Orvieto,
                      Antonio and He, Niao},
            title = {Muown: Row-Norm Control for {Muon} Optimization},
            journal = {arXiv:2605.10797},
            year = {2026},
        }
        ```
    """

    _descends = True

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b1: Unit = 0.9
    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: ZeroOrMore = 0.0
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="match_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByMuownState:
        count = jnp.zeros((), jnp.int32)
        of_rows = lambda: self.for_matrices(params, _norms)
        return ScaleByMuownState(
            count=count,
            learning_rate=recorded(at(self, "learning_rate", count)),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            lengths=of_rows(),
            gain_mu=of_rows(),
            gain_nu=of_rows(),
        )

    def matrixwise(
        self, state: ScaleByMuownState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        eta, state = take_rate(self, state)
        shared = {"newton_schulz": self._newton_schulz(), "learning_rate": eta}
        return counted(self, muown, state, **shared)


class Muown(AbstractOptimizer):
    r"""Muown: Muon for the directions of the rows of a matrix, Adam for their norms.

    !!! abstract "One step"

        Each row $i$ of a matrix is $w_i = a_i v_i / \|v_i\|$, with a gain $a_i$ and a
        vector $v_i$ (weight normalization). At the start, $v_0 = w_0$ and
        $a_0 = \|w_0\|$. For the gradient $g$ of $w$, and with the products row by row,

        $$\begin{aligned}
          \nabla a &= \langle g, w / a \rangle &
          \nabla v &= \frac{a}{\|v\|} \left(g - \frac{w}{a} \nabla a\right) \\
          \mu_t &= \beta \mu_{t-1} + (1 - \beta) \nabla v &
          v_t &= v_{t-1} - \eta_t\, s \operatorname{NS}(\hat\mu_t) \\
          d_t &= \operatorname{Adam}(\nabla a) &
          a_t &= a_{t-1} - \eta_t\, (d_t + \lambda a_{t-1}) \\
          & & u_t &= a_t\, \frac{v_t}{\|v_t\|} - w_{t-1}
        \end{aligned}$$

        where $\hat\mu_t = \mu_t$, or $\beta \mu_t + (1 - \beta) \nabla v$ with
        `nesterov`. $\operatorname{Adam}$ is the update of [`eqopt.ScaleByAdam`][] with
        `b1`, `b2` and `eps`. $\operatorname{NS}$ is the iteration of
        [`eqopt.Orthogonalize`][], with $\varepsilon = 10^{-7}$ in $\operatorname{NS}$
        only.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} + u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByMuown`][].

        At the start, $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95),
        $\lambda$ is `weight_decay` (0.0), $s$ is `scale` (`"match_rms"`). Parameters
        that are not matrices use `fallback`, by default [`eqopt.AdamW`][].

    !!! example

        ```python
        opt = eqopt.Muown(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule, for matrices and for
        the fallback.
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
    - `b1`, `b2`: the decay of Adam's moments, in $[0, 1)$. Default to 0.9 and 0.95.
    - `eps`: $\varepsilon \ge 0$ of Adam. Defaults to 1e-8.
    - `weight_decay`: $\lambda \ge 0$, for the gains of matrices and for the fallback.
        Defaults to 0.0.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"match_rms"`.
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
        `None`, which means [`eqopt.AdamW`][] with the same `learning_rate`, `b1`, `b2`,
        `eps` and `weight_decay`.

    **When to use it:** like Muon, with the learning rates and schedules of AdamW. The
    norms of rows are trained by themselves, so they do not drift without weight decay.
    Its authors report a lower loss of language models with 124 million to 2.7 billion
    parameters than with Muon, and that the learning rate and the weight decay matter
    less.

    ??? cite "Reference"

        The authors' code without weight decay; their decay also turns the rows. In
        NVIDIA's Emerging-Optimizers, gains decay as here, but after the step of Adam,
        and there is no Nesterov momentum.

        ```bibtex
        @article{lion2026muown,
            author = {Lion, Kai and H{\"u}bler, Florian and Li, Bingcong and Orvieto,
                      Antonio and He, Niao},
            title = {Muown: Row-Norm Control for {Muon} Optimization},
            journal = {arXiv:2605.10797},
            year = {2026},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    beta: Unit = 0.95
    b1: Unit = 0.9
    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: ZeroOrMore = 0.0
    nesterov: bool = True
    scale: Scale = eqx.field(static=True, default="match_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        others = self.fallback
        if others is None:
            others = self.part(AdamW, mu_dtype=None, nesterov=False)
        return Chain(self.part(ScaleByMuown), Masked(others, are_others(self)))
