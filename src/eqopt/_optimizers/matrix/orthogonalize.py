"""The nearest orthogonal matrix, using only matrix products."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_fields, check_real_dtype
from ..._arguments.fields import static_choice
from ..._core import Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers
from ..._transforms.normalize import zero_if_infinite
from ..._types import Params, Size, Updates, ZeroOrMore
from ...numerics._numerics import safe_norm
from .parts.eigenbasis import Matrix
from .parts.newton_schulz import (
    NS_EPS,
    SCALES,
    Coefficients,
    NewtonSchulz,
    Scale,
    check_iteration,
    newton_schulz_of,
)


# The smallest value of the norms below before something is divided by them.
_LEAST = 1e-6


def _with_equal_rows(x: Matrix) -> Matrix:
    norm = safe_norm(x, 0)
    x = x / jnp.where(norm == 0, 1, norm)  # prevents underflow in the norms of rows
    x = x / safe_norm(x, _LEAST, axis=1, keepdims=True)
    return zero_if_infinite(norm) / math.sqrt(len(x)) * x


@equation
def orthogonalize(
    g: Matrix, *, newton_schulz: NewtonSchulz, eps, scale, row_normalize, renormalize
) -> Matrix:
    u = newton_schulz(_with_equal_rows(g) if row_normalize else g, eps)
    if renormalize:
        u = math.sqrt(min(g.shape)) / safe_norm(u, _LEAST) * u
    return SCALES[scale](*g.shape) * u


class Orthogonalize(AbstractMatrixwise):
    r"""Replaces each matrix by an approximation of the nearest orthogonal matrix.

    The update is $u = s \operatorname{NS}(G)$, with the Newton-Schulz iteration.

    $$\begin{aligned}
      \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
      X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
      A_k &= X_{k-1} X_{k-1}^*
    \end{aligned}$$

    with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$ that
    belongs to them, usually 1.

    The singular vectors stay the same, and all singular values become close to one.
    This transformation has no state: for momentum, put another one before it in an
    [`eqopt.Chain`][]. In float32, the square of a norm above 1.8e19 overflows: then the
    update is zero. Parameters that are not matrices pass unchanged. Stacked matrices
    are orthogonalized separately.

    !!! example

        ```python
        eqopt.Chain(eqopt.EMA(0.95), eqopt.Orthogonalize("polar_express"))
        ```

    **Arguments:**

    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to `"standard"`.
    - `steps`: the number of steps. Defaults to the number of rows, or to 5 for a single
        row. If there are more steps than rows, the rows start again; Polar Express, CANS
        and DeepSeek repeat the last row.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"none"`.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-7.
    - `gram`: whether to iterate on $X X^*$ and multiply by $X$ at the end. The result is
        the same up to rounding, at a lower cost if one side is much longer than the
        other. Square matrices are iterated as they are. Defaults to `False`.
    - `restarts`: with `gram`, the steps, counted from 0, before which $X X^*$ is computed
        again. This keeps rounding errors small. Defaults to `(2,)`.
    - `dtype`: the dtype of the iteration. By default, a CPU iterates in float32, and
        accelerators in bfloat16 with the coefficients whose authors do so: `"standard"`,
        `"dion"`, `"polar_express"`, `"aol"`, `"deepseek"` and `"simple"`. With other
        coefficients, with `gram`, and for matrices that are complex or in float64, the
        matrix keeps its dtype. For the same precision on all platforms, use
        `jnp.float32`. In float16, five steps with `gram` are precise enough, but eight
        are not.
    - `row_normalize`: whether to divide each row of $G$ by its norm first (MuonEq). Rows
        with norms below $10^{-6}\, \|G\|_F$ stay smaller. Defaults to `False`.
    - `renormalize`: whether to scale $X_N$ to the norm of an orthogonal matrix,
        $\|X_N\|_F = \sqrt{\min(m, n)}$ (Muon+). Defaults to `False`.
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

    A `ValueError` if an argument is invalid. In `update`, a `ValueError` with the
    key path if the dimension numbers do not fit the parameters.

    ??? cite "References"

        ```bibtex
        @misc{jordan2024muon,
            author = {Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng and
                      Cesista, Franz and Newhouse, Laker and Bernstein, Jeremy},
            title = {Muon: An Optimizer for Hidden Layers in Neural Networks},
            url = {https://kellerjordan.github.io/posts/muon/},
            year = {2024},
        }

        @article{amsel2025polar,
            author = {Amsel, Noah and Persson, David and Musco, Christopher and Gower,
                      Robert M.},
            title = {The {Polar Express}: Optimal Matrix Sign Methods and Their
                     Application to the {Muon} Algorithm},
            journal = {arXiv:2505.16932},
            year = {2025},
        }

        @article{grishina2025accelerating,
            author = {Grishina, Ekaterina and Smirnov, Matvey and Rakhuba, Maxim},
            title = {Accelerating {Newton-Schulz} Iteration for Orthogonalization via
                     {Chebyshev}-type Polynomials},
            journal = {arXiv:2506.10935},
            year = {2025},
        }

        @article{chang2026muoneq,
            author = {Chang, Da and Shi, Qiankun and Zhang, Lvgang and Li, Yu and Zhang,
                      Ruijie and Lu, Yao and Liu, Yongxiang and Yuan, Ganzhao},
            title = {{MuonEq}: Balancing Before Orthogonalization with Lightweight
                     Equilibration},
            journal = {arXiv:2603.28254},
            year = {2026},
        }

        @article{zhang2026muonplus,
            author = {Zhang, Ruijie and Zhao, Yequan and Liu, Ziyue and Wang, Zhengyang
                      and Zhang, Zheng},
            title = {{Muon+}: Towards Better {Muon} via One Additional Normalization
                     Step},
            journal = {arXiv:2602.21545},
            year = {2026},
        }
        ```
    """

    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="none")
    eps: ZeroOrMore = NS_EPS
    gram: bool = static_choice(static=True, default=False)
    restarts: tuple[int, ...] = eqx.field(static=True, default=(2,))
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    row_normalize: bool = False
    renormalize: bool = False
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self) -> None:
        check_fields(self)
        check_real_dtype("dtype", self.dtype)
        check_iteration(self, "dtype")

    def newton_schulz(self) -> NewtonSchulz:
        """The iteration, as a function of a matrix."""
        return newton_schulz_of(
            self, "dtype", by_gram=self.gram, restarts=self.restarts
        )

    def init(self, params: Params) -> None:
        self._layouts(params, params)  # raises an error if they do not fit

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        shared = {"newton_schulz": self.newton_schulz()}
        return Leafwise(orthogonalize, state, shared)


class AbstractMomentumState(eqx.Module):
    """The momentum of each matrix."""

    mu: Updates


class AbstractOrthogonal(AbstractMatrixwise):
    """A method for matrices that uses a Newton-Schulz iteration."""

    coefficients: eqx.AbstractVar[Coefficients]
    steps: eqx.AbstractVar[int | None]
    ns_dtype: eqx.AbstractVar[DTypeLike | None]

    def __check_init__(self) -> None:
        check_fields(self)
        check_iteration(self)

    def _newton_schulz(self) -> NewtonSchulz:
        """The iteration, as a function of a matrix."""
        return newton_schulz_of(self)
