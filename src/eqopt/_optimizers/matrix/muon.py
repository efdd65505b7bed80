"""Muon: orthogonal steps for matrices, and another optimizer for everything else."""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Int

from ..._arguments.checks import check_fields
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractOptimizer,
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    equation,
)
from ..._matrices import (
    AbstractMatrixwise,
    AbstractWhole,
    DimensionNumbers,
    map_matrices,
)
from ..._trees.leaves import is_leaf
from ..._trees.masks import mask_out
from ..._trees.precision import compute_dtype
from ..._trees.routes import Report
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    PyTree,
    ScalarOrSchedule,
    Size,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, bias_correction, safe_increment, safe_sqrt
from ..adam.adam import ScaleByAdam
from .parts.eigenbasis import Matrix, gram, short_side
from .parts.newton_schulz import STANDARD, TABLES, check_rows, iterate
from .parts.recipe import WeightDecay, are_matrices, matrices_and_others


Coefficients: TypeAlias = Literal["standard", "dion"] | tuple | Array | np.ndarray
Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]

_PRESETS = {"standard": STANDARD, "dion": TABLES["dion"].rows}


class Iteration(AbstractWhole):
    r"""$\operatorname{NS}$: the Newton-Schulz iteration of Muon.

    **Attributes:**

    - `rows`: $(a, b, c)$ for all steps, or one row for each step.
    - `steps`: the number of steps, if there is one row for all.
    - `preconditioning`: the divisor at the start, in addition to the Frobenius norm.
    - `ns_dtype`: the dtype of the iteration. `None` for the dtype of the matrix.
    """

    rows: Float[Array, "*steps 3"]
    steps: int = eqx.field(static=True)
    preconditioning: str = eqx.field(static=True)
    ns_dtype: DTypeLike | None = eqx.field(static=True)

    def of_whole(self, x: Matrix, eps: Any) -> Matrix:
        """Orthogonalizes `x`. Zeros stay zero."""
        start = _start(x, eps, self.preconditioning)
        return iterate(start, self.rows, self.steps, self.ns_dtype, self.ns_dtype)


def _start(x, eps, preconditioning):
    """Returns $X_0$, the start of the iteration."""
    squares = jnp.sum(abs_sq(x))
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))
    start = x / (norm + eps)
    if preconditioning == "frobenius":
        return start
    side = short_side(x.shape)
    squares = _SQUARED_SCALES[preconditioning](gram(start, side))
    if squares.ndim:  # one for each row of the short side
        squares = jnp.expand_dims(squares, 1 - side)
    return start * lax.rsqrt(jnp.where(squares > 0, squares, 1))


# The squared divisors of $X$ as functions of the `gram` of its shorter side: a number, or
# one for each row of the `gram`.
# ($X$ is always divided by the Frobenius norm first. So they do not depend on the scale
# of the gradients, and the squares of small gradients do not underflow.)
_SQUARED_SCALES: dict[str, Callable] = {
    "spectral": lambda gram: jnp.linalg.eigvalsh(gram)[-1],
    "aol": lambda gram: jnp.sum(jnp.abs(gram), 1),
    "schatten": lambda gram: safe_sqrt(jnp.sum(abs_sq(gram))),
}


class ScaleByMuonState(eqx.Module):
    """The momentum.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    """

    count: Int[Array, ""]
    mu: Updates


@equation
def muon(
    g: Matrix, mu: Matrix, *, iteration: Iteration, beta, of_mu, of_g, eps, adaptive
) -> tuple[Matrix, Matrix]:
    mu = beta * mu + (1 - beta) * g
    mean = of_mu * mu if of_g is None else of_mu * mu + of_g * g
    u = iteration(mean, eps)
    if adaptive:
        u = u * jnp.sum((jnp.conj(mean) * u).real)
    return u, mu


class ScaleByMuon(AbstractMatrixwise):
    r"""Replaces the momentum of each matrix by a nearly orthogonal matrix close to it.

    !!! abstract "One step"

        $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, g_t, \qquad
          \hat\mu_t = \mu_t / (1 - \beta^t), \qquad
          u_t = \operatorname{NS}(\hat\mu_t),$$

        where $\operatorname{NS}$ is the Newton-Schulz iteration of
        [`eqopt.Orthogonalize`][], with the coefficients `ns_coeffs`.

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta \mu_t / (1 - \beta^{t+1}) + (1 - \beta)\, g_t / (1 - \beta^t)$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $g_t$ is the gradient. At the start, $\mu_0 = 0$. $\beta$ is `beta` (0.95),
        $\varepsilon$ is `eps` (1e-8). By default, `nesterov` is `True`.

    For $X = U \Sigma V^*$, the result is $U \Sigma' V^*$ with singular values near one:
    between about 0.7 and 1.2 for the default coefficients. The updates of zero matrices
    are zero. Stacked matrices, for example in layers made with `eqx.filter_vmap`, are
    transformed separately. Parameters that are not matrices pass unchanged and have no
    state.

    With all methods for matrices, a CPU processes one leaf after the other, or two small
    leaves in one loop. So a step with many leaves needs memory for only one or two.
    Accelerators process matrices of equal shape in batches, except with methods that
    refresh their factors in turn.

    **Arguments:**

    - `ns_coeffs`: $(a, b, c)$ for all steps, a tuple of such rows with one for each step,
        or an array of either form. `"standard"` and `"dion"` are names of published
        coefficients. Defaults to `"standard"`, $(3.4445, -4.775, 2.0315)$.
    - `ns_steps`: the number of steps if `ns_coeffs` is a single row. Otherwise, it has no
        effect. Defaults to 5.
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `adaptive`: whether to multiply the update of each matrix by
        $\langle \hat\mu_t, u_t \rangle$, about the sum of the singular values of
        $\hat\mu_t$. Then the steps become smaller when the gradients do. Defaults to
        `False`.
    - `preconditioning`: a second divisor of $X_0$, in addition to the Frobenius norm:
        `"frobenius"` for none; `"spectral"` for the largest singular value, at the cost
        of an eigenvalue problem; `"schatten"` for $\|A_0\|_F^{1/2}$; `"aol"` for the root
        of $\sum_j |A_{0, ij}|$, row by row. If the singular values start closer to one,
        fewer steps are needed. Defaults to `"frobenius"`.
    - `ns_dtype`: the dtype of the iteration, except for complex matrices. The authors use
        `jnp.bfloat16` on accelerators. Defaults to float32, or to the dtype of the
        gradient if that is more precise.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to all
        arrays with at least two axes. Defaults to [`eqopt.groups.layer_matrices`][]: the
        weights of Equinox's linear, convolution and recurrent layers, and arrays with
        two axes (inputs first) outside the layers of `equinox.nn`. Embeddings are not
        matrices. Other arrays with three or more axes outside these layers, such as
        your own stack of matrices, are then an error. Describe them with
        [`eqopt.groups.matrices`][] and [`eqopt.groups.stacked`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if `ns_coeffs` is not of
    shape `(3,)` or `(steps, 3)`. In `init` and `update`, a `ValueError` with the key
    path if the dimension numbers do not fit the parameters, or if they are needed but not
    given.

    ??? cite "References"

        ```bibtex
        @misc{jordan2024muon,
            author = {Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng and
                      Cesista, Franz and Newhouse, Laker and Bernstein, Jeremy},
            title = {Muon: An Optimizer for Hidden Layers in Neural Networks},
            url = {https://kellerjordan.github.io/posts/muon/},
            year = {2024},
        }

        @article{bernstein2024old,
            author = {Bernstein, Jeremy and Newhouse, Laker},
            title = {Old Optimizer, New Norm: An Anthology},
            journal = {arXiv:2409.20325},
            year = {2024},
        }

        @article{ahn2025dion,
            author = {Ahn, Kwangjun and Xu, Byron and Abreu, Natalie and Fan, Ying and
                      Magakyan, Gagik and Sharma, Pratyusha and Zhan, Zheng and
                      Langford, John},
            title = {Dion: Distributed Orthonormalized Updates},
            journal = {arXiv:2504.05295},
            year = {2025},
        }
        ```
    """

    ns_coeffs: Coefficients = STANDARD
    ns_steps: Size = static_choice(static=True, default=5)
    beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    adaptive: bool = False
    preconditioning: Preconditioning = eqx.field(static=True, default="frobenius")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    _rows = "first"

    def __check_init__(self) -> None:
        check_fields(self)
        check_rows(self, "ns_coeffs")

    def init(self, params: Params) -> ScaleByMuonState:
        mu = self.for_matrices(params, lambda x: x, self.mu_dtype)
        return ScaleByMuonState(jnp.zeros((), jnp.int32), mu)

    def matrixwise(
        self, state: ScaleByMuonState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        beta = jnp.asarray(self.beta, float)
        if self.nesterov:
            of_mu = beta / bias_correction(beta, safe_increment(count))
            of_g = (1 - beta) / bias_correction(beta, count)
        else:
            of_mu, of_g = 1 / bias_correction(beta, count), None
        coefficients = self.ns_coeffs
        if isinstance(coefficients, str):
            coefficients = _PRESETS[coefficients]
        iteration = Iteration(
            rows=jnp.asarray(coefficients, float),
            steps=self.ns_steps,
            preconditioning=self.preconditioning,
            ns_dtype=self.ns_dtype,
        )
        shared = {"iteration": iteration, "of_mu": of_mu, "of_g": of_g}
        return Leafwise(muon, ScaleByMuonState(count, state.mu), shared)


@equation
def stretch(g: Leaf, factor: Float[Array, "..."], *, rms) -> Leaf:
    return (rms * factor) * g


class _ScaleByShape(AbstractStateless):
    """Scales updates according to the shapes of matrices; see `Muon`."""

    consistent_rms: Hyperparameter | None = None
    weight_dimension_numbers: DimensionNumbers | None = None

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        shared = {"rms": 1.0 if self.consistent_rms is None else self.consistent_rms}
        reads = {"factor": lambda updates: self._factors(updates, params)}
        return Leafwise(stretch, None, shared, reads, mask=are_matrices(self))

    def _route(self, report: Report, params: Params) -> None:
        factors = self._factors(params, params)
        report.multiply(params, jtu.tree_leaves(factors, is_leaf=is_leaf))
        if self.consistent_rms is not None:
            matrices = mask_out(params, are_matrices(self), params)
            report.multiply(matrices, self.consistent_rms)

    def _factors(self, tree: PyTree, params: Params | None) -> PyTree:
        """The factor of each matrix, an array if it differs between blocks of it."""

        def of_one(axes, g):
            return np.asarray(axes.map_blocks(g.shape, self._factor), compute_dtype(g))

        return map_matrices(of_one, self.weight_dimension_numbers, tree, params)

    def _factor(self, outputs: int, inputs: int) -> float:
        if self.consistent_rms is None:
            return math.sqrt(max(1, outputs / max(1, inputs)))
        return math.sqrt(max(inputs, outputs))


class Muon(AbstractOptimizer):
    r"""Muon: orthogonal steps for matrices, and another optimizer for everything else.

    !!! abstract "One step"

        $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, g_t, \qquad
          \hat\mu_t = \mu_t / (1 - \beta^t), \qquad
          u_t = \operatorname{NS}(\hat\mu_t),$$

        where $\operatorname{NS}$ is the Newton-Schulz iteration of
        [`eqopt.Orthogonalize`][], with the coefficients `ns_coeffs`.

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta \mu_t / (1 - \beta^{t+1}) + (1 - \beta)\, g_t / (1 - \beta^t)$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, (s\, u_t + \lambda p_{t-1}), \qquad
          s = \sqrt{\max(1, n_\text{out} / n_\text{in})},$$

        where $u_t$ is the update of [`eqopt.ScaleByMuon`][], and
        $n_\text{in} \times n_\text{out}$ is the shape of the matrix.

        With `consistent_rms`, $s = r \sqrt{\max(n_\text{in}, n_\text{out})}$. Then the
        root mean square of $s u_t$ is about $r$ for all shapes.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `beta` (0.95), $\varepsilon$
        is `eps` (1e-8), $\lambda$ is `weight_decay` (0.0), $r$ is `consistent_rms`. By
        default, `nesterov` is `True`. Parameters that are not matrices use `fallback`,
        by default [`eqopt.Adam`][].

    `torch.optim.Muon` supports only matrices, has no bias correction (which makes no
    difference without Nesterov momentum), iterates in bfloat16, and has a default
    weight decay of 0.1.

    !!! example

        ```python
        opt = eqopt.Muon(0.02)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `ns_coeffs`: $(a, b, c)$ for all steps, a tuple of such rows with one for each
        step, or an array of either form. `"standard"` and `"dion"` are names of
        published coefficients. Defaults to `"standard"`, $(3.4445, -4.775, 2.0315)$.
    - `ns_steps`: the number of steps if `ns_coeffs` is a single row. Otherwise, it has
        no effect. Defaults to 5.
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `adaptive`: whether to multiply the update of each matrix by
        $\langle \hat\mu_t, u_t \rangle$, about the sum of the singular values of
        $\hat\mu_t$. Then the steps become smaller when the gradients do. Defaults to
        `False`.
    - `preconditioning`: a second divisor of $X_0$, in addition to the Frobenius norm:
        `"frobenius"` for none; `"spectral"` for the largest singular value, at the cost
        of an eigenvalue problem; `"schatten"` for $\|A_0\|_F^{1/2}$; `"aol"` for the
        root of $\sum_j |A_{0, ij}|$, row by row. If the singular values start closer to
        one, fewer steps are needed. Defaults to `"frobenius"`.
    - `ns_dtype`: the dtype of the iteration, except for complex matrices. The authors
        use `jnp.bfloat16` on accelerators. Defaults to `None`, which means float32, or
        the dtype of the gradient if that is more precise.
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
        [`eqopt.groups.stacked`][]. Exclude matrices that train better with the
        fallback, such as the last layer.
    - `consistent_rms`: $r$, a number or a 0-d array. With 0.2, you can use learning
        rates and weight decays that were tuned for AdamW. More exactly, AdamW's updates
        for white gradients have the root mean square
        $\sqrt{(1 - \beta_1) / (1 + \beta_1)}$, with AdamW's $\beta_1$: 0.23 for 0.9, and
        0.16 for 0.95. Defaults to `None`, for the first formula for $s$.
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        `None`, which means [`eqopt.Adam`][] with the same `learning_rate`,
        `weight_decay`, `eps`, `mu_dtype` and `nesterov`. Your own has its own decay;
        `weight_decay` and `mask` are then only for matrices.

    **When to use it:** for the hidden layers of transformers and other large networks,
    where it reaches the same loss in fewer steps than AdamW, with half the state. Leave
    embeddings, the last layer and all vectors to the fallback. A step costs 15 matrix
    products, which matters if batches are small.

    ??? cite "References"

        For `consistent_rms`:

        ```bibtex
        @article{liu2025muon,
            author = {Liu, Jingyuan and Su, Jianlin and Yao, Xingcheng and others},
            title = {Muon is Scalable for {LLM} Training},
            journal = {arXiv:2502.16982},
            year = {2025},
        }
        ```

        ```bibtex
        @misc{jordan2024muon,
            author = {Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng
                      and Cesista, Franz and Newhouse, Laker and Bernstein, Jeremy},
            title = {Muon: An Optimizer for Hidden Layers in Neural Networks},
            url = {https://kellerjordan.github.io/posts/muon/},
            year = {2024},
        }

        @article{bernstein2024old,
            author = {Bernstein, Jeremy and Newhouse, Laker},
            title = {Old Optimizer, New Norm: An Anthology},
            journal = {arXiv:2409.20325},
            year = {2024},
        }

        @article{ahn2025dion,
            author = {Ahn, Kwangjun and Xu, Byron and Abreu, Natalie and Fan, Ying and
                      Magakyan, Gagik and Sharma, Pratyusha and Zhan, Zheng and
                      Langford, John},
            title = {Dion: Distributed Orthonormalized Updates},
            journal = {arXiv:2504.05295},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    ns_coeffs: Coefficients = STANDARD
    ns_steps: Size = static_choice(static=True, default=5)
    beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    adaptive: bool = False
    preconditioning: Preconditioning = eqx.field(static=True, default="frobenius")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    consistent_rms: Hyperparameter | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        adam = ScaleByAdam(eps=self.eps, mu_dtype=self.mu_dtype, nesterov=self.nesterov)
        parts = self.part(ScaleByMuon), self.part(_ScaleByShape)
        return matrices_and_others(self, *parts, others=adam)
