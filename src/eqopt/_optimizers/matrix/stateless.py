"""Stateless steps for matrices: normalized rows, or normalized rows and columns."""

import functools
import math
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from ..._arguments.checks import check_needs
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers, map_matrices
from ..._transforms.scale import Scale, ScaleByTree
from ..._transforms.trace import EMA
from ..._trees.masks import both
from ..._trees.states import check_state
from ..._types import (
    Hyperparameter,
    Mask,
    Params,
    PerLeaf,
    Positive,
    PyTree,
    ScalarOrSchedule,
    Size,
    State,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_norm
from .parts.eigenbasis import Matrix
from .parts.recipe import WeightDecay, are_matrices, matrices_and_others


SpectralTarget: TypeAlias = Literal["unit", "unit_rms"]

# The spectral norm of an update with m outputs and n inputs.
TARGETS = {"unit": lambda m, n: 1.0, "unit_rms": lambda m, n: math.sqrt(m / n)}


def _of_mean_square_one(x: Any, axis: int, least: Any) -> Any:
    """Scales `x` to a root mean square of one along an axis. Zeros stay zero."""
    norms = safe_norm(x, 0, axis=axis, keepdims=True)
    # Zeros are not divided by `least`: derivatives of many iterations would overflow.
    divisors = jnp.where(norms == 0, 1, jnp.maximum(norms, least))
    return x * (math.sqrt(x.shape[axis]) / divisors)


@equation
def row_norm(g: Matrix, *, eps) -> Matrix:
    return _of_mean_square_one(g, 1, eps * math.sqrt(g.shape[1]))


class Sinkhorn(eqx.Module):
    """`steps`: how many times to normalize all rows and then all columns; static."""

    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, eps: Any) -> Any:
        for _ in range(self.steps):
            x = _of_mean_square_one(x, 1, eps)
            x = _of_mean_square_one(x, 0, eps)
        return x


@equation
def sinkhorn(g: Matrix, *, iteration: Sinkhorn, eps) -> Matrix:
    return iteration(g, eps)


class SpectralNorm(eqx.Module):
    """Estimates the largest singular value by the power method.

    `steps`: the number of steps of the power method; static.
    """

    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, start: Any) -> Any:
        """Returns the estimate, and the right singular vector as a row.

        `start` is replaced if it is orthogonal to all rows. This happens in the first
        step, and when different columns become zero.
        """
        longest = jnp.argmax(jnp.sum(abs_sq(x), 1))
        is_of_use = jnp.sum(abs_sq(start @ jnp.conj(x.T))) > 0
        v = jnp.where(is_of_use, start, x[longest][None])
        norm = jnp.zeros((), x.real.dtype)
        for _ in range(self.steps):
            v = _of_length_one(v @ jnp.conj(x.T)) @ x
            norm = safe_norm(v, 0)
            v = _of_length_one(v)
        return norm, v


def _of_length_one(x: Any) -> Any:
    norm = safe_norm(x, 0)
    return x / jnp.where(norm == 0, 1, norm)


@equation
def spectral_sinkhorn(
    g: Matrix,
    right: Inexact[Array, "1 n"],
    *,
    iteration: Sinkhorn,
    spectral_norm: SpectralNorm,
    eps,
    spectral_target,
) -> tuple[Matrix, Inexact[Array, "1 n"]]:
    x = iteration(g, eps)
    norm, right = spectral_norm(x, right)
    target = TARGETS[spectral_target](*g.shape)
    return target / jnp.where(norm == 0, 1, norm) * x, right


class ScaleByRowNorm(AbstractMatrixwise):
    r"""Divides each row of a matrix by its root mean square.

    $$u_{ij} = \frac{G_{ij}}{\max(r_i, \varepsilon)}, \qquad
      r_i = \sqrt{\tfrac{1}{n} \sum_{j=1}^n |G_{ij}|^2}$$

    for a matrix $G$ with $n$ columns.

    A row holds the weights of one output of a layer. This transformation has no state.
    Zero rows stay zero. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
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

    A `ValueError` if `eps` is out of its range. In `init` and `update`, a `ValueError`
    with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @article{glentis2025minimalist,
            author = {Glentis, Athanasios and Li, Jiaxiang and Han, Andi and Hong,
                      Mingyi},
            title = {A Minimalist Optimizer Design for {LLM} Pretraining},
            journal = {arXiv:2506.16659},
            year = {2025},
        }
        ```
    """

    in_batches: ClassVar[bool] = False

    eps: ZeroOrMore = 1e-8
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> None:
        self._layouts(params, params)  # raises an error if they do not fit

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(row_norm)


class ScaleBySinkhornState(eqx.Module):
    """`right`: an estimate of the leading right singular vector of each update.

    It has the axes of the parameter, with size 1 along the outputs. `None` for parameters
    that are not matrices.
    """

    right: PerLeaf


class ScaleBySinkhorn(AbstractMatrixwise):
    r"""Alternately scales the rows and the columns of each matrix to equal lengths.

    $$\begin{aligned}
      X_0 &= G \\
      \tilde X_k &= \sqrt n\, \operatorname{diag}\big(\|(X_{k-1})_{i:}\|\big)^{-1} X_{k-1}
      & X_k &= \sqrt m\, \tilde X_k
               \operatorname{diag}\big(\|(\tilde X_k)_{:j}\|\big)^{-1}
      & u &= X_L
    \end{aligned}$$

    for a matrix $G$ with $m$ outputs and $n$ inputs. Norms below $\varepsilon$ count as
    $\varepsilon$.

    At the end, each column of the update has the norm $\sqrt m$, and each row has a
    norm near $\sqrt n$. Without a `spectral_target`, there is no state. Zero rows and
    columns stay zero. Parameters that are not matrices pass unchanged.

    With a `spectral_target` $s$, the update is $s\, X_L / \sigma$ instead, where $\sigma$
    is an estimate of the largest singular value of $X_L$. It is computed by the power
    method, which starts from the vector of the previous step. This vector is the state.
    In the first step, and if the vector is orthogonal to all rows of $X_L$, the method
    starts from the longest row. This option is from the code of
    [Axolotl](https://github.com/axolotl-ai-cloud/axolotl), not from the paper.

    **Arguments:**

    - `steps`: $L$, a Python integer of at least 1. Defaults to 5.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `spectral_target`: the spectral norm of the update: `"unit"` for 1, `"unit_rms"` for
        $\sqrt{m / n}$, or `None` to leave $X_L$ as it is.
    - `power_steps`: the number of steps of the power method for $\sigma$, a Python
        integer of at least 1. Defaults to 1.
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
        @article{scetbon2025gradient,
            author = {Scetbon, Meyer and Ma, Chao and Gong, Wenbo and Meeds, Edward},
            title = {Gradient Multi-Normalization for Stateless and Memory-Efficient
                     {LLM} Training},
            journal = {arXiv:2502.06742},
            year = {2025},
        }
        ```
    """

    steps: Size = static_choice(static=True, default=5)
    eps: ZeroOrMore = 1e-8
    spectral_target: SpectralTarget | None = eqx.field(static=True, default=None)
    power_steps: Size = static_choice(static=True, default=1)
    weight_dimension_numbers: DimensionNumbers | None = None

    _work = "few products"

    def init(self, params: Params) -> ScaleBySinkhornState | None:
        if self.spectral_target is not None:
            return ScaleBySinkhornState(self.for_matrices(params, lambda x: x[:1]))
        self._layouts(params, params)  # raises an error if they do not fit
        return None

    def matrixwise(
        self, state: State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        has_target = self.spectral_target is not None
        check_state(self, state, ScaleBySinkhornState if has_target else type(None))
        shared: dict[str, Any] = {"iteration": Sinkhorn(self.steps)}
        if not has_target:
            return Leafwise(sinkhorn, None, shared)
        shared["spectral_norm"] = SpectralNorm(self.power_steps)
        return Leafwise(spectral_sinkhorn, state, shared)


def _width_factors(numbers: DimensionNumbers | None, base, exponent, params) -> PyTree:
    """`(base / inputs) ** exponent` for each matrix, and 1 for everything else."""
    # Arrays of one type: the derivative of a power loses the weak type of Python numbers.
    base, exponent = (jnp.asarray(x, jnp.result_type(float)) for x in (base, exponent))
    inputs = lambda outputs, inputs: inputs
    return map_matrices(
        lambda axes, x: (base / axes.map_blocks(x.shape, inputs)) ** exponent,
        numbers,
        params,
        params,
        otherwise=lambda x: 1.0,
    )


class SinkGD(AbstractOptimizer):
    r"""SinkGD: gradient descent with normalized rows and columns.

    !!! abstract "One step"

        $$\begin{aligned}
          X_0 &= G \\
          \tilde X_k &= \sqrt n\, \operatorname{diag}\big(\|(X_{k-1})_{i:}\|\big)^{-1}
              X_{k-1}
          & X_k &= \sqrt m\, \tilde X_k
                   \operatorname{diag}\big(\|(\tilde X_k)_{:j}\|\big)^{-1}
          & u &= X_L
        \end{aligned}$$

        for a matrix $G$ with $m$ outputs and $n$ inputs. Norms below $\varepsilon$
        count as $\varepsilon$.

        $$p_t = p_{t-1} - \eta_t\, (\alpha u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleBySinkhorn`][].

        $\eta$ is `learning_rate`, $L$ is `steps` (5), $\varepsilon$ is `eps` (1e-8),
        $\alpha$ is `scale` (0.05), $\lambda$ is `weight_decay` (0.0), $n_0$ is
        `base_width`. Parameters that are not matrices use `fallback`, by default
        [`eqopt.AdamW`][].

    Without a `spectral_target`, only the fallback has state. With a `base_width` $n_0$,
    a matrix with $n$ inputs uses $\alpha\, (n_0 / n)^\kappa$ instead of $\alpha$, so
    that a learning rate found at one width also works at others. This rule and its
    defaults, $\alpha$ and `spectral_target` are from the code of
    [Axolotl](https://github.com/axolotl-ai-cloud/axolotl).

    !!! example

        ```python
        opt = eqopt.SinkGD(0.02)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule, for matrices and for
        the fallback.
    - `steps`: $L$, a Python integer of at least 1. Defaults to 5.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `scale`: $\alpha$, a number or a 0-d array: a factor for the update of matrices.
        Weight decay does not depend on it. Defaults to 0.05.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
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
    - `spectral_target`: the spectral norm of the update: `"unit"` for 1, or
        `"unit_rms"` for $\sqrt{m / n}$. Defaults to `None`, which leaves $X_L$ as it is.
    - `power_steps`: the number of steps of the power method for $\sigma$, a Python
        integer of at least 1. Defaults to 1.
    - `base_width`: $n_0 > 0$. Do not use it with `spectral_target="unit_rms"`, which
        also corrects for the width. It concerns matrices only; [`eqopt.groups.mup`][]
        makes factors for all parameters and other optimizers. Defaults to `None`, which
        means the same $\alpha$ at all widths.
    - `width_exponent`: $\kappa$, a number or a 0-d array. Defaults to 1.0.

    **Raises:**

    A `ValueError` for a number out of its range, or for two corrections of the width.

    **When to use it:** if there is no memory for any state. Its authors report language
    models as good as Adam's, in less time. It does not average over steps, so batches
    must be large.

    ??? cite "Reference"

        ```bibtex
        @article{scetbon2025gradient,
            author = {Scetbon, Meyer and Ma, Chao and Gong, Wenbo and Meeds, Edward},
            title = {Gradient Multi-Normalization for Stateless and Memory-Efficient
                     {LLM} Training},
            journal = {arXiv:2502.06742},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    steps: Size = static_choice(static=True, default=5)
    eps: ZeroOrMore = 1e-8
    scale: Hyperparameter = 0.05
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None
    spectral_target: SpectralTarget | None = eqx.field(static=True, default=None)
    power_steps: Size = static_choice(static=True, default=1)
    base_width: Positive | None = None
    width_exponent: Hyperparameter = 1.0

    def __check_init__(self) -> None:
        is_met = self.base_width is None or self.spectral_target != "unit_rms"
        fix = "The target 'unit_rms' also corrects for the width."
        check_needs("base_width", "spectral_target='unit'", is_met, fix)

    @property
    def chain(self) -> Chain:
        scale = Masked(Scale(self.scale), are_matrices(self))
        parts = self.part(ScaleBySinkhorn), scale
        if self.base_width is not None:
            rule = self.weight_dimension_numbers, self.base_width, self.width_exponent
            parts += (ScaleByTree(functools.partial(_width_factors, *rule)),)
        return matrices_and_others(self, *parts)


class SCALE(AbstractOptimizer):
    r"""SCALE: normalized rows, and momentum only for the last layer.

    !!! abstract "One step"

        $$u_{ij} = \frac{G_{ij}}{\max(r_i, \varepsilon)}, \qquad
          r_i = \sqrt{\tfrac{1}{n} \sum_{j=1}^n |G_{ij}|^2}$$

        for a matrix $G$ with $n$ columns.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByRowNorm`][]. It is computed from the
        gradient $G$, or, for the last layer, from
        $m_t = \beta m_{t-1} + (1 - \beta)\, G_t$.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $m_0 = 0$. $\eta$ is `learning_rate`, $\beta$ is `momentum` (0.9), $\varepsilon$
        is `eps` (1e-8), $\lambda$ is `weight_decay` (0.0). Parameters that are not
        matrices use `fallback`, by default [`eqopt.AdamW`][].

    The authors also normalize embeddings. By default, embeddings are not matrices. To
    normalize them, declare them in `weight_dimension_numbers`, with words as inputs.

    !!! example

        ```python
        last = eqopt.groups.where(lambda model: model.head)
        opt = eqopt.SCALE(1e-3, last_layer=last)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `momentum`: $\beta \in [0, 1)$. Defaults to 0.9.
    - `last_layer`: which matrices have momentum: a tree of Python bools like the
        parameters or a prefix of it, or a function of the parameters that returns one.
        Defaults to `None`, which means no matrix, because the parameters do not show
        which layer is the last one.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
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

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    **When to use it:** if there is memory for the state of only one layer. Its authors
    report language models as good as Adam's. As with SinkGD, batches must be large.

    ??? cite "Reference"

        ```bibtex
        @article{glentis2025minimalist,
            author = {Glentis, Athanasios and Li, Jiaxiang and Han, Andi and Hong,
                      Mingyi},
            title = {A Minimalist Optimizer Design for {LLM} Pretraining},
            journal = {arXiv:2506.16659},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    momentum: Unit = 0.9
    last_layer: Mask | None = static_choice(default=None)
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        parts: list[AbstractTransformation] = [self.part(ScaleByRowNorm)]
        if self.last_layer is not None:
            mask = both(are_matrices(self), self.last_layer)
            parts.insert(0, Masked(EMA(self.momentum, debias=False), mask))
        return matrices_and_others(self, *parts)
