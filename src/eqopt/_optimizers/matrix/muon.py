"""Muon: orthogonal steps for matrices, and another optimizer for everything else."""

import functools
import math
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.checks import check_scalar
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractOptimizer,
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    equation,
)
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._trees.leaves import is_leaf
from ..._trees.masks import mask_out
from ..._trees.routes import Report
from ..._types import Hyperparameter, Leaf, Mask, Params, Scalar, ScalarOrSchedule
from ..adam.adam import ScaleByAdam
from .parts.coefficients import STANDARD
from .parts.recipe import for_each_matrix, is_matrix, matrices_and_others
from .scale_by_muon import Coefficients, Preconditioning, ScaleByMuon


@equation
def stretch(g: Leaf, factor: Float[Array, "..."], *, rms: Scalar) -> Leaf:
    return (rms * factor) * g


class _ScaleByShape(AbstractStateless):
    """Scales updates according to the shapes of matrices; see `Muon`."""

    consistent_rms: Hyperparameter | None = None
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        if self.consistent_rms is not None:
            check_scalar(self, "consistent_rms")

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        numbers = self.weight_dimension_numbers
        return Leafwise(
            stretch,
            shared={"rms": 1.0 if self.consistent_rms is None else self.consistent_rms},
            reads={"factor": for_each_matrix(numbers, params, self._factor)},
            mask=functools.partial(is_matrix, numbers, True),
        )

    def _route(self, report: Report, params: Params) -> None:
        numbers = self.weight_dimension_numbers
        factors = for_each_matrix(numbers, params, self._factor)(params)
        report.multiply(params, jtu.tree_leaves(factors, is_leaf=is_leaf))
        if self.consistent_rms is not None:
            known = is_matrix(numbers, True, params)
            report.multiply(mask_out(params, known, params), self.consistent_rms)

    def _factor(self, outputs: int, inputs: int) -> float:
        if self.consistent_rms is None:
            return math.sqrt(max(1, outputs / max(1, inputs)))
        return math.sqrt(max(inputs, outputs))


class Muon(AbstractOptimizer):
    r"""Muon: orthogonal steps for matrices, and another optimizer for everything else.

    $$p_t = p_{t-1} - \eta_t\, (s\, u_t + \lambda p_{t-1}), \qquad
      s = \sqrt{\max(1, n_\text{out} / n_\text{in})},$$

    where $u_t$ is the update of [`eqopt.ScaleByMuon`][], which has the equations and
    the reference, and $n_\text{in} \times n_\text{out}$ is the shape of the matrix.

    With `consistent_rms`, $s = r \sqrt{\max(n_\text{in}, n_\text{out})}$. Then the root
    mean square of $s u_t$ is about $r$ for all shapes.

    `torch.optim.Muon` supports only matrices, has no bias correction (which makes no
    difference without Nesterov momentum), iterates in bfloat16, and has a default
    weight decay of 0.1.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options.
    - `mask`: which parameters decay, as in [`eqopt.Masked`][]. Defaults to all.
    - `consistent_rms`: $r$, a number or a 0-d array. With 0.2, you can use learning
        rates and weight decays that were tuned for AdamW. Defaults to `None`, for the
        first formula for $s$.
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        [`eqopt.Adam`][] with the same `learning_rate`, `weight_decay`, `eps`, `mu_dtype`
        and `nesterov`. Your own has its own decay; `weight_decay` and `mask` are then
        only for matrices.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][]. Exclude matrices that train
        better with the fallback, such as the last layer.
    - All others: see [`eqopt.ScaleByMuon`][].

    ??? cite "Reference"

        For `consistent_rms`:

        ```bibtex
        @article{liu2025muon,
            author = {Liu, Jingyuan and Su, Jianlin and Yao, Xingcheng and others},
            title = {Muon is Scalable for {LLM} Training},
            journal = {arXiv:2502.16982},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    ns_coeffs: Coefficients = STANDARD
    ns_steps: int = static_choice(static=True, default=5)
    beta: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-8
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
