"""CAME: Adafactor with momentum, and with larger steps where the momentum is reliable."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._matrices import Axes, DimensionNumbers, MatrixDimensionNumbers, map_matrices
from ..._transforms.factored_rms import inverse_root, inverse_roots, squared_product
from ..._types import (
    Leaf,
    Mask,
    Nonnegative,
    Params,
    Positive,
    PyTree,
    ScalarOrSchedule,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_sqrt
from ...tree._like import real_full_like, wide_zeros_like
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByCAMEState(eqx.Module):
    """The momentum, and the second moments of gradients and of residuals.

    Except for `mu`, they are trees like the parameters with real numbers. A parameter
    has either all of `v_row`, `v_col`, `s_row` and `s_col`, or `v`; the others are
    empty tuples. Rows and columns have the axes of the parameter. The axes that are
    averaged over have size 1.

    **Attributes:**

    - `mu`: the mean of the updates, a tree like the parameters.
    - `v_row`, `v_col`: the second moment of each row and of each column.
    - `v`: the second moment of each element, for parameters that are not factored.
    - `s_row`, `s_col`: the mean squared residual of each row and of each column.
    """

    mu: Updates
    v_row: Nonnegative
    v_col: Nonnegative
    v: Nonnegative
    s_row: Nonnegative
    s_col: Nonnegative


# An array, or the empty tuple if a leaf has no statistics of this kind. (`None` would
# mean that there is no parameter.)
_Statistics: TypeAlias = PyTree[Float[Array, "..."]]


@equation
def came(
    g: Leaf,
    mu: Leaf,
    v_row: _Statistics,
    v_col: _Statistics,
    v: _Statistics,
    s_row: _Statistics,
    s_col: _Statistics,
    *,
    b1,
    b2,
    b3,
    eps,
    eps_confidence,
    clipping_threshold,
) -> tuple[Leaf, Leaf, _Statistics, _Statistics, _Statistics, _Statistics, _Statistics]:
    is_matrix = not isinstance(v_row, tuple)
    if is_matrix:
        v_row = _average(b2, v_row, abs_sq(g), eps)
        v_col = _average(b2, v_col, abs_sq(g), eps)
        factors = _inverse_root(v_row, v_col)
    else:
        v = b2 * v + (1 - b2) * (abs_sq(g) + eps)
        factors = [inverse_root(v)]
    if clipping_threshold is not None:
        rms = safe_sqrt(jnp.sum(squared_product(g, factors)) / max(g.size, 1))
        factors[-1] = factors[-1] / jnp.maximum(1, rms / clipping_threshold)
    u = math.prod(factors, start=g)
    d = mu = b1 * mu + (1 - b1) * u
    if is_matrix:
        residual = abs_sq(u - mu)
        s_row = _average(b3, s_row, residual, eps_confidence)
        s_col = _average(b3, s_col, residual, eps_confidence)
        d = math.prod(_inverse_root(s_row, s_col), start=mu)
    return d, mu, v_row, v_col, v, s_row, s_col


def _average(decay, old, squares, eps):
    new = jnp.mean(squares, _averaged_axes(old), keepdims=True) + eps
    return decay * old + (1 - decay) * new


def _inverse_root(row, col):
    """The factors of the inverse root of `row * col / mean(row)`."""
    return inverse_roots(row, col, _averaged_axes(col))


def _averaged_axes(mean):
    return [axis for axis, size in enumerate(mean.shape) if size == 1]


class ScaleByCAME(AbstractLeafwise):
    r"""Divides by factored roots of second moments, and of the momentum's residuals.

    $$\begin{aligned}
      \hat u_t &= g_t \Big/ \sqrt{r_t c_t^\top / \operatorname{mean}(r_t)}, \qquad
      u_t = \hat u_t \big/ \max\left(1, \operatorname{RMS}(\hat u_t) / d\right) \\
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, u_t \\
      d_t &= \mu_t \Big/ \sqrt{R_t C_t^\top / \operatorname{mean}(R_t)}
    \end{aligned}$$

    for matrices, where $d_t$ is the new update. The squares and the residuals are
    approximated by averages of rows and columns:

    $$\begin{aligned}
      r_t &= \beta_2 r_{t-1} + (1 - \beta_2) \operatorname{mean}_{\text{columns}}
             \left(|g_t|^2 + \varepsilon\right) \\
      R_t &= \beta_3 R_{t-1} + (1 - \beta_3) \operatorname{mean}_{\text{columns}}
             \left(|u_t - \mu_t|^2 + \varepsilon'\right)
    \end{aligned}$$

    and $c_t$, $C_t$ are defined with means over the rows. A parameter that is not a
    matrix has a full second moment $v_t$ instead of
    $r_t c_t^\top / \operatorname{mean}(r_t)$, and $d_t = \mu_t$.

    An $n \times m$ matrix needs $2 (n + m)$ numbers of state in addition to $\mu$. In
    float32, the square of a gradient above 1.8e19 overflows: its matrix, or its
    coordinate if it is not in a matrix, then has an infinite second moment, and $u_t$
    is zero.

    The averages start at zero, without bias correction. The clipping hides this in
    $u_t$, but each element of the first $d_t$ is about
    $(1 - \beta_1) / (\beta_1 \sqrt{1 - \beta_3})$, which is 11 with the defaults: warm
    up the learning rate. The steps become arbitrarily large if $\mu_t$ equals $u_t$ for
    a long time, for example with $\beta_1 = 0$ or with constant gradients.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the residuals. Defaults to 0.9999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-30.
    - `eps_confidence`: $\varepsilon' \ge 0$. Defaults to 1e-16.
    - `clipping_threshold`: $d > 0$, or `None` for no clipping. Defaults to 1.0.
    - `weight_dimension_numbers`: [`eqopt.MatrixDimensionNumbers`][] for each parameter
        to factor, and `None` for all others: a tree like the parameters or a prefix of
        it, or a function of the parameters that returns one. Defaults to the last two
        axes of all arrays with at least two axes, which is wrong for convolution
        kernels. It is used only in `init`.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `nu_dtype`: the dtype of all other arrays of the state. Defaults to float32, or
        the precision of the parameter if that is higher.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `init` a `ValueError`
    or `TypeError` that names the key path if the dimension numbers do not fit.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{luo2023came,
            author = {Luo, Yang and Ren, Xiaozhe and Zheng, Zangwei and Jiang, Zhuo and
                      Jiang, Xin and You, Yang},
            title = {{CAME}: Confidence-guided Adaptive Memory Efficient Optimization},
            booktitle = {Annual Meeting of the Association for Computational
                         Linguistics},
            year = {2023},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    b3: Unit = 0.9999
    eps: ZeroOrMore = 1e-30
    eps_confidence: ZeroOrMore = 1e-16
    clipping_threshold: Positive | None = 1.0
    weight_dimension_numbers: DimensionNumbers | None = None
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByCAMEState:
        zeros = functools.partial(self._zeros, params)
        rows = lambda v, axes: jnp.sum(v, axes.output, keepdims=True) if axes else ()
        cols = lambda v, axes: jnp.sum(v, axes.reduction, keepdims=True) if axes else ()
        return ScaleByCAMEState(
            mu=wide_zeros_like(params, self.mu_dtype),
            v_row=zeros(rows),
            v_col=zeros(cols),
            v=zeros(lambda v, axes: () if axes else v),
            s_row=zeros(rows),
            s_col=zeros(cols),
        )

    def _zeros(self, params, make: Callable[[Array, Axes | None], Any]) -> Nonnegative:
        """The result of `make` for zeros like each parameter, and its axes.

        It reduces an array to rows, so that they are sharded like the remaining axes.
        """
        given = self.weight_dimension_numbers
        return map_matrices(
            lambda axes, v: make(v, axes if v.size else None),  # empty: it has no mean
            MatrixDimensionNumbers(-2, -1) if given is None else given,
            real_full_like(params, 0, self.nu_dtype),
            params,
            otherwise=lambda v: None if v is None else make(v, None),
            takes_blocks=False,
        )

    def leafwise(
        self, state: ScaleByCAMEState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(came, state)


class CAME(AbstractRecipe):
    r"""CAME: momentum with little memory, and steps scaled by its reliability.

    !!! abstract "One step"

        $$\begin{aligned}
          \hat u_t &= g_t \Big/ \sqrt{r_t c_t^\top / \operatorname{mean}(r_t)}, \qquad
          u_t = \hat u_t \big/ \max\left(1, \operatorname{RMS}(\hat u_t) / d\right) \\
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, u_t \\
          d_t &= \mu_t \Big/ \sqrt{R_t C_t^\top / \operatorname{mean}(R_t)}
        \end{aligned}$$

        for matrices, where $d_t$ is the new update. The squares and the residuals are
        approximated by averages of rows and columns:

        $$\begin{aligned}
          r_t &= \beta_2 r_{t-1} + (1 - \beta_2) \operatorname{mean}_{\text{columns}}
                 \left(|g_t|^2 + \varepsilon\right) \\
          R_t &= \beta_3 R_{t-1} + (1 - \beta_3) \operatorname{mean}_{\text{columns}}
                 \left(|u_t - \mu_t|^2 + \varepsilon'\right)
        \end{aligned}$$

        and $c_t$, $C_t$ are defined with means over the rows. A parameter that is not a
        matrix has a full second moment $v_t$ instead of
        $r_t c_t^\top / \operatorname{mean}(r_t)$, and $d_t = \mu_t$.

        $$p_t = p_{t-1} - \eta_t\, (d_t + \lambda p_{t-1}),$$

        where $d_t$ is the update of [`eqopt.ScaleByCAME`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = r_0 = R_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\beta_3$ is `b3` (0.9999), $\varepsilon$ is `eps`
        (1e-30), $\varepsilon'$ is `eps_confidence` (1e-16), $d$ is `clipping_threshold`
        (1.0), $\lambda$ is `weight_decay` (0.0).

    The authors use 0.5 to 0.9 times the learning rate of AdamW, with a warm-up.

    !!! example

        ```python
        opt = eqopt.CAME(2e-4)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$, the decay of the residuals. Defaults to 0.9999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-30.
    - `eps_confidence`: $\varepsilon' \ge 0$. Defaults to 1e-16.
    - `clipping_threshold`: $d > 0$, or `None` for no clipping. Defaults to 1.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `weight_dimension_numbers`: [`eqopt.MatrixDimensionNumbers`][] for each parameter
        to factor, and `None` for all others: a tree like the parameters or a prefix of
        it, or a function of the parameters that returns one. Defaults to `None`, which
        means the last two axes of all arrays with at least two axes, which is wrong for
        convolution kernels. It is used only in `init`.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype of all other arrays of the state. Defaults to `None`, which
        means float32, or the precision of the parameter if that is higher.

    **When to use it:** instead of Adafactor with momentum, for large language models.
    Its authors report losses equal to Adam's or lower, also at large batch sizes, with
    hardly more memory than Adafactor. Warm up the learning rate, because the first
    steps are long.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{luo2023came,
            author = {Luo, Yang and Ren, Xiaozhe and Zheng, Zangwei and Jiang, Zhuo and
                      Jiang, Xin and You, Yang},
            title = {{CAME}: Confidence-guided Adaptive Memory Efficient Optimization},
            booktitle = {Annual Meeting of the Association for Computational
                         Linguistics},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    b3: Unit = 0.9999
    eps: ZeroOrMore = 1e-30
    eps_confidence: ZeroOrMore = 1e-16
    clipping_threshold: Positive | None = 1.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByCAME, AddDecayedWeights, ScaleByLearningRate
