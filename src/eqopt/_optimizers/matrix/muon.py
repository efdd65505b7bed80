"""Muon: orthogonal steps for matrices, another optimizer for everything else."""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._checks import check_scalar
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._dimension_numbers import (
    Axes,
    DimensionNumbers,
    resolve_dimension_numbers,
    size,
)
from ..._equations import compute_dtype, equation
from ..._fields import static_choice
from ..._leaves import flatten_updates
from ..._pipeline import Leafwise, Pipeline
from ..._transformation import AbstractFused, AbstractOptimizer, AbstractTransformation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import Hyperparameter, Mask, Params, ScalarOrSchedule, State
from ..adam.adam import ScaleByAdam
from .parts.coefficients import STANDARD
from .parts.recipe import is_matrix
from .scale_by_muon import Coefficients, Preconditioning, ScaleByMuon


@equation
def stretch(
    g: Inexact[Array, "*leaf"], factor: Float[Array, ""], *, rms: Float[Array, ""]
) -> Inexact[Array, "*leaf"]:
    return (rms * factor) * g


class _ScaleByShape(AbstractFused):
    """Makes up for the shapes of matrices; see `Muon`."""

    consistent_rms: Hyperparameter | None = None
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        if self.consistent_rms is not None:
            check_scalar(self, "consistent_rms")

    def init(self, params: Params) -> None:
        return None

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        numbers, updates = self.weight_dimension_numbers, pipeline.flush()
        leaves, treedef = flatten_updates(updates)
        axes = resolve_dimension_numbers(numbers, updates, pipeline.params)
        factors = treedef.unflatten(
            None
            if g is None
            else np.asarray(self._factor(g.shape, a), compute_dtype(g))
            for g, a in zip(leaves, axes, strict=True)
        )
        rms = 1.0 if self.consistent_rms is None else self.consistent_rms
        mask = functools.partial(is_matrix, numbers, True)
        leafwise = Leafwise(stretch, None, {"rms": rms}, {"factor": factors}, mask)
        return pipeline.push("Muon", leafwise)

    def _factor(self, shape: tuple[int, ...], axes: Axes | None) -> float:
        if axes is None:
            return 1.0
        inputs, outputs = size(shape, axes.reduction), size(shape, axes.output)
        if self.consistent_rms is None:
            return math.sqrt(max(1, outputs / max(1, inputs)))
        return math.sqrt(max(inputs, outputs))


class Muon(AbstractOptimizer):
    r"""Muon: orthogonal steps for matrices, and another optimizer for everything else.

    $$p_t = p_{t-1} - \eta_t\, (s\, u_t + \lambda p_{t-1}), \qquad
      s = \sqrt{\max(1, n_\text{out} / n_\text{in})},$$

    where $u_t$ is the update of [`eqopt.ScaleByMuon`][], which has the equations and
    the reference, and $n_\text{in} \times n_\text{out}$ is the shape of the matrix.
    With `consistent_rms` it is $s = r \sqrt{\max(n_\text{in}, n_\text{out})}$: the root
    mean square of $s u_t$ is then about $r$ for all shapes.

    `torch.optim.Muon` supports only matrices, corrects no bias (which makes no
    difference without Nesterov momentum), iterates in bfloat16, and has a default
    weight decay of 0.1.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `weight_decay`: $\lambda$, only for matrices, a number, a 0-d array, a schedule or
        an [`eqopt.AddDecayedWeights`][] that says more.
    - `mask`: which matrices decay, as in [`eqopt.Masked`][]. Defaults to all.
    - `consistent_rms`: $r$, a number or a 0-d array. With 0.2, learning rates and decays
        that were found for AdamW can stay.
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        [`eqopt.Adam`][] with the same `learning_rate`, `eps`, `mu_dtype` and
        `nesterov`.
    - The others are those of [`eqopt.ScaleByMuon`][]. Say which matrices are better
        left to the fallback, such as the last layer, with `weight_dimension_numbers`.

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
    weight_dimension_numbers: DimensionNumbers | None = None
    consistent_rms: Hyperparameter | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        matrices, others = (
            functools.partial(is_matrix, self.weight_dimension_numbers, flag)
            for flag in (True, False)
        )
        descend = self.part(ScaleByLearningRate)
        if self.fallback is None:
            adam = ScaleByAdam(
                eps=self.eps, mu_dtype=self.mu_dtype, nesterov=self.nesterov
            )
            rest = Masked(adam, others), descend
        else:
            rest = Masked(descend, matrices), Masked(self.fallback, others)
        return Chain(
            self.part(ScaleByMuon),
            self.part(_ScaleByShape),
            Masked(self.part(AddDecayedWeights), matrices),
            *rest,
        )
