"""Matrices with rows, or rows and columns, of equal length: steps without state."""

import functools
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..._checks import check_count, check_range, check_scalar
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._dimension_numbers import DimensionNumbers
from ..._equations import equation
from ..._fields import static_choice
from ..._matrixwise import AbstractMatrixwise, everywhere
from ..._pipeline import Leafwise
from ..._transformation import AbstractOptimizer, AbstractTransformation
from ..._transforms.average import EMA
from ..._transforms.scale import Scale
from ..._transforms.weight_decay import WeightDecay
from ..._types import Hyperparameter, Mask, Params, ScalarOrSchedule
from ...numerics import safe_norm
from .parts.recipe import is_matrix, matrices_and_others


Matrix = Inexact[Array, "m n"]


def _of_mean_square_one(x: Any, axis: int, least: Any) -> Any:
    """`x` with norms along an axis scaled to the root of its size; zeros stay zero."""
    norms = safe_norm(x, 0, axis=axis, keepdims=True)
    # Not by `least` if zero: derivatives of many iterations would overflow.
    divisors = jnp.where(norms == 0, 1, jnp.maximum(norms, least))
    return x * (math.sqrt(x.shape[axis]) / divisors)


@equation
def row_norm(g: Matrix, *, eps: Float[Array, ""]) -> Inexact[Array, "m n"]:
    return _of_mean_square_one(g, 1, eps * math.sqrt(g.shape[1]))


class ScaleByRowNorm(AbstractMatrixwise):
    r"""Divides each row of a matrix by its root mean square.

    $$u_{ij} = \frac{G_{ij}}{\max(r_i, \varepsilon)}, \qquad
      r_i = \sqrt{\tfrac{1}{n} \sum_{j=1}^n |G_{ij}|^2}$$

    A row holds the weights of one output of a layer. There is no state. Zero rows stay
    zero. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `eps`: $\varepsilon \ge 0$.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if `eps` is out of its range; in `init` and `update`, one that names
    the key path if the dimension numbers do not fit the parameters.

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

    eps: Hyperparameter = 1e-8
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "eps", 0)

    def init(self, params: Params) -> None:
        self._layouts(params, params)  # whether they fit

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(row_norm)


class Sinkhorn(eqx.Module):
    """`steps`: how many times to normalise all rows and then all columns, static."""

    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, eps: Any) -> Any:
        for _ in range(self.steps):
            x = _of_mean_square_one(x, 1, eps)
            x = _of_mean_square_one(x, 0, eps)
        return x


@equation
def sinkhorn(
    g: Matrix, iteration: Sinkhorn, *, eps: Float[Array, ""]
) -> Inexact[Array, "m n"]:
    return iteration(g, eps)


class ScaleBySinkhorn(AbstractMatrixwise):
    r"""Scales rows and columns of each matrix alternately, to equal lengths.

    $$\begin{aligned}
      X_0 &= G \\
      \tilde X_k &= \sqrt n\, \operatorname{diag}\big(\|(X_{k-1})_{i:}\|\big)^{-1} X_{k-1}
      & X_k &= \sqrt m\, \tilde X_k
               \operatorname{diag}\big(\|(\tilde X_k)_{:j}\|\big)^{-1}
      & u &= X_L
    \end{aligned}$$

    Norms below $\varepsilon$ count as $\varepsilon$. At the end, each column of the
    update has the norm $\sqrt m$, and each row nearly $\sqrt n$. There is no state.
    Zero rows and columns stay zero. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `steps`: $L$, a Python integer of at least 1.
    - `eps`: $\varepsilon \ge 0$.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `init` and `update`, one
    that names the key path if the dimension numbers do not fit the parameters.

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

    steps: int = static_choice(static=True, default=5)
    eps: Hyperparameter = 1e-8
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_count(self, "steps")
        check_range(self, "eps", 0)

    def init(self, params: Params) -> None:
        self._layouts(params, params)  # whether they fit

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"iteration": everywhere(Sinkhorn(self.steps))}
        return Leafwise(sinkhorn, reads=reads)


class SinkGD(AbstractOptimizer):
    r"""SinkGD: gradient descent with rows and columns of equal length, without state.

    $$p_t = p_{t-1} - \eta_t \alpha\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleBySinkhorn`][], which has the equations and
    the reference. Only the fallback has state.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule, for matrices and for
        the fallback.
    - `steps`, `eps`: see [`eqopt.ScaleBySinkhorn`][].
    - `scale`: $\alpha$, a number or a 0-d array: how much smaller the learning rate of
        matrices is.
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].
    """

    learning_rate: ScalarOrSchedule
    steps: int = static_choice(static=True, default=5)
    eps: Hyperparameter = 1e-8
    scale: Hyperparameter = 0.05
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    def __check_init__(self):
        check_scalar(self, "scale")

    @property
    def chain(self) -> Chain:
        matrices = functools.partial(is_matrix, self.weight_dimension_numbers, True)
        return Chain(
            matrices_and_others(self, self.part(ScaleBySinkhorn)),
            Masked(Scale(self.scale), matrices),
        )


class SCALE(AbstractOptimizer):
    r"""SCALE: rows of equal length, and momentum only for the last layer.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByRowNorm`][] from the gradient, or, for the
    last layer, from $m_t = \beta m_{t-1} + (1 - \beta)\, G_t$. That class has the
    reference.

    !!! example

        ```python
        last = lambda model: eqx.tree_at(
            lambda m: m.head, jax.tree.map(lambda _: False, model), True
        )
        opt = eqopt.SCALE(1e-3, last_layer=last)
        ```

    The authors also normalise embeddings. By default, embeddings are not matrices:
    declare them by `weight_dimension_numbers`, with words as inputs.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `momentum`: $\beta \in [0, 1)$.
    - `last_layer`: which matrices have momentum, as in [`eqopt.Masked`][]. Defaults to
        none, as which layer is the last one cannot be seen from the parameters.
    - `eps`: see [`eqopt.ScaleByRowNorm`][].
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.
    """

    learning_rate: ScalarOrSchedule
    momentum: Hyperparameter = 0.9
    last_layer: Mask | None = static_choice(default=None)
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    def __check_init__(self):
        check_range(self, "momentum", 0, 1)

    @property
    def chain(self) -> Chain:
        parts: list[AbstractTransformation] = [self.part(ScaleByRowNorm)]
        if self.last_layer is not None:
            matrices = functools.partial(is_matrix, self.weight_dimension_numbers, True)
            mean = Masked(EMA(self.momentum, debias=False), self.last_layer)
            parts.insert(0, Masked(mean, matrices))
        return matrices_and_others(self, *parts)
