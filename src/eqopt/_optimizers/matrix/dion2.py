"""Dion2: orthogonal steps for the largest rows or columns."""

import math
from typing import Annotated, Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers
from ..._types import (
    Interval,
    Mask,
    Nonnegative,
    Params,
    ScalarOrSchedule,
    Size,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq
from .normuon import scale_by_row_rms
from .orthogonalize import AbstractMomentumState, AbstractOrthogonal
from .parts.eigenbasis import Matrix, short_side
from .parts.newton_schulz import SCALES, Coefficients, NewtonSchulz, Scale
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


def _number(x: Any) -> Any:
    """`x` as a Python float if it is a number with a known value, otherwise unchanged."""
    try:
        return float(x)
    except (TypeError, ValueError):
        return x


Fraction: TypeAlias = Annotated[float, Interval(0, 1, includes_low=False)]


class ScaleByDion2State(AbstractMomentumState):
    r"""The gradients that have not been applied yet.

    **Attributes:**

    - `mu`: the sum of the gradients, minus the parts that were applied. A tree like the
        parameters, with `None` for parameters that are not matrices.
    - `nu`: with `b2`, the mean of the squares in each row of the orthogonal updates. It
        has the axes of the parameter, with size 1 along the inputs. Otherwise `None`.
    """

    nu: Nonnegative | None


class Largest(eqx.Module):
    """Selects the rows or columns with the largest sums of absolute values; static.

    **Attributes:**

    - `fraction`: the fraction of them to select.
    - `always_rows`: whether to select rows. Otherwise, it selects from the shorter side.
    """

    fraction: float = eqx.field(static=True)
    always_rows: bool = eqx.field(static=True)

    def __call__(self, x: Matrix) -> tuple[Int[Array, " k"], int]:
        """Returns the selected indices, and their axis."""
        axis = 0 if self.always_rows else short_side(x.shape)
        # The selection is not a smooth function of the gradients.
        sizes = jnp.sum(jnp.abs(lax.stop_gradient(x)), 1 - axis)
        count = math.ceil(self.fraction * x.shape[axis])
        return lax.top_k(sizes, count)[1], axis


def _back(x: Any, places: Any, axis: int, size: int) -> tuple[Any, Any]:
    """The selected rows with zeros in between, and a mask of the selected ones.

    This gathers instead of scattering, because XLA on a CPU fuses reads from many places,
    but not writes.
    """
    count = len(places)
    order = jnp.full(size, count).at[places].set(jnp.arange(count))
    is_there = jnp.expand_dims(order < count, 1 - axis)
    return jnp.where(is_there, jnp.take(x, order, axis, mode="clip"), 0), is_there


@equation
def dion2(
    g: Matrix,
    mu: Matrix,
    *,
    newton_schulz: NewtonSchulz,
    largest: Largest,
    ef_decay,
    eps,
    scale,
) -> tuple[Matrix, Matrix]:
    mu = mu + g
    places, axis = largest(mu)
    o = newton_schulz(jnp.take(mu, places, axis), eps)
    o = SCALES[scale](*g.shape) * o
    u, is_there = _back(o, places, axis, mu.shape[axis])
    return u, jnp.where(is_there, ef_decay * mu, mu)


@equation
def nordion2(
    g: Matrix,
    mu: Matrix,
    nu: Float[Array, "m 1"],
    *,
    newton_schulz: NewtonSchulz,
    largest: Largest,
    ef_decay,
    b2,
    eps,
    scale,
) -> tuple[Matrix, Matrix, Float[Array, "m 1"]]:
    mu = mu + g
    rows, _ = largest(mu)
    o = newton_schulz(mu[rows], eps)
    o, v = scale_by_row_rms(o, nu[rows], b2=b2, eps=eps, side="rows")
    u, is_there = _back(SCALES[scale](*g.shape) * o, rows, 0, len(mu))
    return u, jnp.where(is_there, ef_decay * mu, mu), nu.at[rows].set(v)


class ScaleByDion2(AbstractOrthogonal):
    r"""Orthogonal updates for a fraction of the rows, or columns, of each matrix.

    !!! abstract "One step"

        Let $G_t$ be a matrix with $m$ outputs and $n$ inputs, with $m \le n$.
        Otherwise, exchange rows and columns, and $m$ and $n$. Then

        $$\begin{aligned}
          M_t &= \mu_{t-1} + G_t &
          S_t &= \operatorname{top}_k \Big(\textstyle\sum_j |M_{t, ij}|\Big), \quad
            k = \lceil f m \rceil \\
          u_t[S_t] &= s \operatorname{NS}(M_t[S_t]) &
          \mu_t[S_t] &= \alpha\, M_t[S_t]
        \end{aligned}$$

        and for the other rows, $u_t = 0$ and $\mu_t = M_t$: they accumulate until they
        are among the largest. $\operatorname{NS}$ and $s$ are the iteration and the
        factor, for the shape of the whole matrix, of [`eqopt.Orthogonalize`][].

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $G_t$ is the gradient. At the start, $\mu_0 = 0$. $f$ is `fraction` (0.25),
        $\alpha$ is `ef_decay` (0.95), $\varepsilon$ is `eps` (1e-8), $s$ is `scale`
        (`"unit_rms"`).

    With $f = 1$, this is Muon with heavy-ball momentum. Parameters that are not
    matrices pass unchanged and have no state.

    With `b2`, this is NorDion2. It selects rows for all shapes, and divides each row by
    the root of a second moment, like [`eqopt.ScaleByNorMuon`][]:

    $$\nu_t[S_t] = \beta_2 \nu_{t-1}[S_t] + (1 - \beta_2)
      \operatorname{mean}_{\text{columns}} |O_t|^2, \qquad
      u_t[S_t] = s\, \frac{\|O_t\|_F}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t, \qquad
      \hat O_t = \frac{O_t}{\sqrt{\nu_t[S_t]} + \varepsilon},$$

    where $O_t = \operatorname{NS}(M_t[S_t])$.

    **Arguments:**

    - `fraction`: $f \in (0, 1]$, a Python number: the fraction of rows or columns to
        select. Defaults to 0.25.
    - `ef_decay`: $\alpha \in [0, 1)$: how much of the applied rows stays in $\mu$.
        Defaults to 0.95.
    - `b2`: $\beta_2 \in [0, 1)$, for NorDion2, whose authors use 0.95. Defaults to
        `None`, for Dion2.
    - `eps`: $\varepsilon \ge 0$, also added to the norm in $\operatorname{NS}$.
        Defaults to 1e-8.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"polar_express"`.
    - `steps`: the number of steps. Defaults to the number of rows, or to 5 for a single
        row. If there are more steps than rows, the rows start again; Polar Express,
        CANS and DeepSeek repeat the last row.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"unit_rms"`.
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
        @article{ahn2025dion2,
            author = {Ahn, Kwangjun and Amsel, Noah and Langford, John},
            title = {{Dion2}: A Simple Method to Shrink Matrix in {Muon}},
            journal = {arXiv:2512.16928},
            year = {2025},
        }
        ```
    """

    fraction: Fraction = eqx.field(static=True, converter=_number, default=0.25)
    ef_decay: Unit = 0.95
    b2: Unit | None = None
    eps: ZeroOrMore = 1e-8
    coefficients: Coefficients = "polar_express"
    steps: Size | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="unit_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    _work = "few products"

    def init(self, params: Params) -> ScaleByDion2State:
        squares = lambda x: jnp.sum(abs_sq(x), 1, keepdims=True)
        return ScaleByDion2State(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=None if self.b2 is None else self.for_matrices(params, squares),
        )

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self, state: ScaleByDion2State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        by_row = self.b2 is not None
        shared = {
            "newton_schulz": self._newton_schulz(),
            "largest": Largest(self.fraction, by_row),
        }
        return Leafwise(nordion2 if by_row else dion2, state, shared)


class Dion2(AbstractMatrixRecipe):
    r"""Dion2: orthogonal steps for a fraction of the rows, or columns, of each matrix.

    !!! abstract "One step"

        Let $G_t$ be a matrix with $m$ outputs and $n$ inputs, with $m \le n$.
        Otherwise, exchange rows and columns, and $m$ and $n$. Then

        $$\begin{aligned}
          M_t &= \mu_{t-1} + G_t &
          S_t &= \operatorname{top}_k \Big(\textstyle\sum_j |M_{t, ij}|\Big), \quad
            k = \lceil f m \rceil \\
          u_t[S_t] &= s \operatorname{NS}(M_t[S_t]) &
          \mu_t[S_t] &= \alpha\, M_t[S_t]
        \end{aligned}$$

        and for the other rows, $u_t = 0$ and $\mu_t = M_t$: they accumulate until they
        are among the largest. $\operatorname{NS}$ and $s$ are the iteration and the
        factor, for the shape of the whole matrix, of [`eqopt.Orthogonalize`][].

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByDion2`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $f$ is `fraction` (0.25), $\alpha$ is
        `ef_decay` (0.95), $\varepsilon$ is `eps` (1e-8), $\lambda$ is `weight_decay`
        (0.01), $s$ is `scale` (`"unit_rms"`). Parameters that are not matrices use
        `fallback`, by default [`eqopt.AdamW`][].

    Weight decay applies to all rows in each step.

    !!! example

        ```python
        opt = eqopt.Dion2(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.01.
    - `fraction`: $f \in (0, 1]$, a Python number: the fraction of rows or columns to
        select. Defaults to 0.25.
    - `ef_decay`: $\alpha \in [0, 1)$: how much of the applied rows stays in $\mu$.
        Defaults to 0.95.
    - `b2`: $\beta_2 \in [0, 1)$, for NorDion2, whose authors use 0.95. Defaults to
        `None`, for Dion2.
    - `eps`: $\varepsilon \ge 0$, also added to the norm in $\operatorname{NS}$.
        Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"polar_express"`.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"unit_rms"`.
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

    **When to use it:** like Muon, if its matrix products take a large part of each
    step: for large matrices, and especially for sharded ones. It orthogonalizes a
    quarter of the rows in each step, and its authors report nearly the loss of Muon. On
    eqopt's small workloads, it reaches the loss of AdamW less often than Muon.
    `b2=0.95` makes it NorDion2.

    ??? cite "Reference"

        ```bibtex
        @article{ahn2025dion2,
            author = {Ahn, Kwangjun and Amsel, Noah and Langford, John},
            title = {{Dion2}: A Simple Method to Shrink Matrix in {Muon}},
            journal = {arXiv:2512.16928},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    fraction: Fraction = eqx.field(static=True, converter=_number, default=0.25)
    ef_decay: Unit = 0.95
    b2: Unit | None = None
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.01
    mask: Mask | None = static_choice(default=None)
    coefficients: Coefficients = "polar_express"
    steps: Size | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="unit_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByDion2
