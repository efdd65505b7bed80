"""Scion: the steepest step of a given size, in a norm chosen for each layer."""

import math
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike

from ..._arguments.checks import check_needs
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import DimensionNumbers, MatrixDimensionNumbers
from ..._transforms.normalize import or_1
from ..._types import Mask, Params, ScalarOrSchedule, Size, Unit, ZeroOrMore
from ...numerics._numerics import safe_norm
from .orthogonalize import AbstractMomentumState, AbstractOrthogonal
from .parts.eigenbasis import Matrix
from .parts.newton_schulz import Coefficients, NewtonSchulz
from .parts.recipe import WeightDecay, matrices_and_others


Norm: TypeAlias = Literal["spectral", "sign", "row", "col"]


class ScaleByLMOState(AbstractMomentumState):
    """`mu`: the mean of the gradients so far; `None` for leaves that are not matrices."""


@equation
def lmo(
    g: Matrix,
    mu: Matrix,
    *,
    newton_schulz: NewtonSchulz,
    radius,
    beta,
    eps,
    norm,
    normalized,
    at_least_one,
) -> tuple[Matrix, Matrix]:
    mu = beta * mu + (1 - beta) * g
    m, n = g.shape
    inputs = n if normalized else 1
    if norm == "spectral":
        factor = math.sqrt(m / inputs)
        u = (max(1.0, factor) if at_least_one else factor) * newton_schulz(mu)
    elif norm == "sign":
        u = jnp.sign(mu) / inputs
    else:
        size = math.sqrt(inputs) if norm == "row" else inputs / math.sqrt(m)
        axis = 1 if norm == "row" else 0
        u = mu / or_1(size * safe_norm(mu, 0, axis=axis, keepdims=True) + eps)
    return radius * u, mu


class ScaleByLMO(AbstractOrthogonal):
    r"""Replaces the momentum by the point of a norm ball furthest in its direction.

    !!! abstract "One step"

        $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, G_t, \qquad
          u_t = \rho \operatorname*{arg\,max}_{\|X\| \le 1} \langle \mu_t, X \rangle$$

        with one of four norms, for matrices with $m$ outputs and $n$ inputs:

        | `norm` | $u_t / \rho$ | for |
        |---|---|---|
        | `"spectral"` | $\sqrt{m / n}\, \operatorname{NS}(\mu_t)$ | hidden layers |
        | `"sign"` | $\operatorname{sign}(\mu_t) / n$ | the last layer |
        | `"row"` | rows of $\mu_t$ over $\sqrt n$ times their norms | the last layer |
        | `"col"` | columns of $\mu_t$ over $n$ times their r.m.s. | the first layer |

        where $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $G_t$ is the gradient. At the start, $\mu_0 = 0$. $\rho$ is `radius` (1.0),
        $\beta$ is `beta` (0.9), $\varepsilon$ is `eps` (1e-8). By default, `norm` is
        `"spectral"`.

    For one-hot inputs, such as words, `normalized=False` sets the $n$ of this table to
    1. The momentum needs no bias correction, because the update does not depend on its
    size. Zero rows and columns stay zero. Parameters that are not matrices pass
    unchanged and have no state.

    The inputs of a convolution kernel, as a matrix, are the inputs of all of its $k$
    pixels. (The authors also divide the update for `"spectral"` by $\sqrt k$.)

    !!! example

        ```python
        # Initial weights of norm 50:
        ball = eqopt.ScaleByLMO(radius=50.0, beta=0.0)
        params, _ = ball.update(params, ball.init(params))
        ```

    **Arguments:**

    - `norm`: `"spectral"`, `"sign"`, `"row"` or `"col"`. Defaults to `"spectral"`.
    - `radius`: $\rho \ge 0$. Defaults to 1.0.
    - `beta`: $\beta \in [0, 1)$. The momentum in the paper is $1 - \beta$. Defaults to
        0.9.
    - `eps`: $\varepsilon \ge 0$, added to the norms of rows and columns. The `"spectral"`
        norm and `"sign"` do not use it. Defaults to 1e-8.
    - `normalized`: whether $n$ in the table of [`eqopt.ScaleByLMO`][] is the number of
        inputs. Otherwise, it is 1. Defaults to `True`.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to the number of rows, or to 5 for a single
        row. If there are more steps than rows, the rows start again; Polar Express,
        CANS and DeepSeek repeat the last row.
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
    - `at_least_one`: whether the factor for `"spectral"` is $\max(1, \sqrt{m / n})$. This
        makes the steps of layers with fewer outputs than inputs larger. (The authors call
        it `max`.) Defaults to `False`.

    **Raises:**

    A `ValueError` if an argument is invalid. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pethick2025training,
            author = {Pethick, Thomas and Xie, Wanyun and Antonakopoulos, Kimon and Zhu,
                      Zhenyu and Silveti-Falls, Antonio and Cevher, Volkan},
            title = {Training Deep Learning Models with Norm-Constrained {LMOs}},
            booktitle = {International Conference on Machine Learning},
            year = {2025},
        }
        ```
    """

    norm: Norm = eqx.field(static=True, default="spectral")
    radius: ZeroOrMore = 1.0
    beta: Unit = 0.9
    eps: ZeroOrMore = 1e-8
    normalized: bool = True
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    at_least_one: bool = False

    def __check_init__(self) -> None:
        is_met = self.norm == "spectral" or not self.at_least_one
        check_needs("at_least_one", "norm='spectral'", is_met)

    def init(self, params: Params) -> ScaleByLMOState:
        return ScaleByLMOState(self.for_matrices(params, lambda x: x, self.mu_dtype))

    def matrixwise(
        self, state: ScaleByLMOState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(lmo, state, {"newton_schulz": self._newton_schulz()})


def _columns(params: Params) -> Any:
    """Dimension numbers that make each array a single column."""
    column = lambda x: MatrixDimensionNumbers((), tuple(range(np.ndim(x))))
    return jax.tree.map(column, params)


class Scion(AbstractOptimizer):
    r"""Scion: steps of constant size, in a norm for each kind of layer.

    !!! abstract "One step"

        $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, G_t, \qquad
          u_t = \rho \operatorname*{arg\,max}_{\|X\| \le 1} \langle \mu_t, X \rangle$$

        with one of four norms, for matrices with $m$ outputs and $n$ inputs:

        | `norm` | $u_t / \rho$ | for |
        |---|---|---|
        | `"spectral"` | $\sqrt{m / n}\, \operatorname{NS}(\mu_t)$ | hidden layers |
        | `"sign"` | $\operatorname{sign}(\mu_t) / n$ | the last layer |
        | `"row"` | rows of $\mu_t$ over $\sqrt n$ times their norms | the last layer |
        | `"col"` | columns of $\mu_t$ over $n$ times their r.m.s. | the first layer |

        where $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][], with
        $\varepsilon = 10^{-7}$ in $\operatorname{NS}$ only.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = (1 - \lambda \eta_t)\, p_{t-1} - \eta_t u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByLMO`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\rho$ is `radius` (1.0), $\beta$ is
        `beta` (0.9), $\varepsilon$ is `eps` (1e-8), $\lambda$ is `weight_decay` (1.0).
        By default, `norm` is `"spectral"`. Parameters that are not matrices use
        `fallback`.

    With $\lambda = 1$, this is the constrained form, the conditional gradient method:
    parameters in the ball of radius $\rho$ stay in it, and all others move towards it.
    With $\lambda = 0$, it is the unconstrained form, steepest descent.

    !!! example

        ```python
        # The authors' choice for a transformer:
        head = eqopt.groups.where(lambda model: model.head)
        opt = eqopt.Partition(
            {
                "hidden": eqopt.Scion(2**-12, radius=50.0),
                "head": eqopt.Scion(2**-12, "sign", radius=3000.0),
            },
            eqopt.groups.label({"head": head, "hidden": eqopt.groups.everything}),
        )
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `norm`: `"spectral"`, `"sign"`, `"row"` or `"col"`. Defaults to `"spectral"`.
    - `radius`: $\rho \ge 0$. Defaults to 1.0.
    - `beta`: $\beta \in [0, 1)$. The momentum in the paper is $1 - \beta$. Defaults to
        0.9.
    - `eps`: $\varepsilon \ge 0$, added to the norms of rows and columns. The
        `"spectral"` norm and `"sign"` do not use it. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 1.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `normalized`: whether $n$ in the table is the number of inputs. Otherwise, it
        is 1. Defaults to `True`.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
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
        `None`, which means the same steps, with
        $u_t = \rho\, \mu_t / \operatorname{rms}(\mu_t)$ for each array.
    - `at_least_one`: whether the factor for `"spectral"` is $\max(1, \sqrt{m / n})$.
        This makes the steps of layers with fewer outputs than inputs larger. (The
        authors call it `max`.) Defaults to `False`.

    **When to use it:** if learning rates found on a small network should hold for a
    wide one: its authors report that they carry over. Each kind of layer has a norm,
    and the state is one momentum. In the constrained form, which is the default,
    weights stay below a given size. The default radii do not fit eqopt's small
    workloads: tune them, too.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pethick2025training,
            author = {Pethick, Thomas and Xie, Wanyun and Antonakopoulos, Kimon and Zhu,
                      Zhenyu and Silveti-Falls, Antonio and Cevher, Volkan},
            title = {Training Deep Learning Models with Norm-Constrained {LMOs}},
            booktitle = {International Conference on Machine Learning},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    norm: Norm = eqx.field(static=True, default="spectral")
    radius: ZeroOrMore = 1.0
    beta: Unit = 0.9
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 1.0
    mask: Mask | None = static_choice(default=None)
    normalized: bool = True
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None
    at_least_one: bool = False

    @property
    def chain(self) -> Chain:
        others = ScaleByLMO(
            norm="col",
            radius=self.radius,
            beta=self.beta,
            eps=self.eps,
            mu_dtype=self.mu_dtype,
            weight_dimension_numbers=_columns,
        )
        return matrices_and_others(self, self.part(ScaleByLMO), others=others)
