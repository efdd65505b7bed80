"""MARS: variance reduction of the gradients, for AdamW, Lion and Shampoo."""

from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_choice, check_range, check_real_dtype
from ..._arguments.extra import required
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._combinators.masked import Masked
from ..._core import (
    AbstractLeafwise,
    AbstractOptimizer,
    AbstractTransformation,
    Leafwise,
    equation,
)
from ..._transforms.block import block_norm
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._trees.axes import DimensionNumbers, resolve_dimension_numbers
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    Scalar,
    ScalarOrSchedule,
    State,
    Updates,
)
from ...tree import zeros_like
from ..adam.adam import ScaleByAdam
from ..moments import check_moments
from ..sign.sign import ScaleBySign
from .orthogonalize import Orthogonalize
from .parts.coefficients import Coefficients
from .parts.recipe import are_matrices, are_others, matrices_and_others


class CorrectByMARSState(eqx.Module):
    """`previous_gradient`: the gradients of the last step; `None` if not `is_approx`."""

    previous_gradient: Updates | None


def _corrected(
    g: Leaf, previous: Leaf, gamma: Scalar, b1: Scalar, max_norm: Scalar | None
) -> Leaf:
    c = g + gamma * b1 / (1 - b1) * (g - previous)
    return c if max_norm is None else c / jnp.maximum(1, block_norm(c) / max_norm)


@equation
def mars(
    g: Leaf,
    previous_gradient: Leaf,
    *,
    gamma: Scalar,
    b1: Scalar,
    max_norm: Scalar | None,
) -> tuple[Leaf, Leaf]:
    return _corrected(g, previous_gradient, gamma, b1, max_norm), g


@equation
def exact_mars(
    g: Leaf, previous_grad: Leaf, *, gamma: Scalar, b1: Scalar, max_norm: Scalar | None
) -> Leaf:
    return _corrected(g, previous_grad, gamma, b1, max_norm)


class CorrectByMARS(AbstractLeafwise):
    r"""Corrects gradients to reduce the variance of the momentum.

    $$c_t = g_t + \gamma \frac{\beta_1}{1 - \beta_1}\, (g_t - \tilde g_t), \qquad
      u_t = c_t / \max(1, \|c_t\|_2 / C)$$

    with the norm over each leaf.

    With `is_approx`, $\tilde g_t = g_{t-1}$, the gradients of the last step, and
    $\tilde g_1 = 0$.

    Otherwise, $\tilde g_t$ are the gradients at the previous parameters for the batch
    of this step, so that the difference has a small variance. Compute these gradients
    and pass them as `previous_grad`:

    !!! example

        ```python
        opt = eqopt.MARS(3e-3, is_approx=False)

        @eqx.filter_jit
        def step(model, previous_model, state, batch):
            loss, grads = eqx.filter_value_and_grad(loss_fn)(model, batch)
            _, previous_grad = eqx.filter_value_and_grad(loss_fn)(previous_model, batch)
            new, state = opt.step(grads, state, model, previous_grad=previous_grad)
            return new, model, state, loss
        ```

    In the first step, pass the model itself as the previous one. Then $c_1 = g_1$.

    Put it in an [`eqopt.Chain`][] before an optimizer whose momentum has the decay
    $\beta_1$. `previous_grad` is not changed by preceding parts, such as clipping, nor by
    [`eqopt.MultiSteps`][]: accumulate both gradients over the same batches.

    **Arguments:**

    - `gamma`: $\gamma \ge 0$, how much to correct. With 0, gradients are only clipped.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum that follows.
    - `max_norm`: $C > 0$, or `None` for no clipping.
    - `is_approx`: whether $\tilde g_t$ are the gradients of the last step. This needs a
        copy of them in the state, but no second gradient.
    - `mu_dtype`: the dtype in which the last gradients are stored. Defaults to the
        dtype of each parameter.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `update`, a `ValueError` if
    `previous_grad` is missing and `is_approx` is false.

    ??? cite "Reference"

        ```bibtex
        @article{yuan2024mars,
            author = {Yuan, Huizhuo and Liu, Yifeng and Wu, Shuang and Zhou, Xun and
                      Gu, Quanquan},
            title = {{MARS}: Unleashing the Power of Variance Reduction for Training
                     Large Models},
            journal = {arXiv:2411.10438},
            year = {2024},
        }
        ```
    """

    gamma: Hyperparameter = 0.025
    b1: Hyperparameter = 0.95
    max_norm: Hyperparameter | None = 1.0
    is_approx: bool = True
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "gamma", 0)
        check_range(self, "b1", 0, 1)
        if self.max_norm is not None:
            check_range(self, "max_norm", 0, includes_low=False)

    def init(self, params: Params) -> CorrectByMARSState:
        is_kept = self.is_approx
        # A copy of a gradient is exact in the dtype of the parameter.
        return CorrectByMARSState(
            zeros_like(params, self.mu_dtype) if is_kept else None
        )

    def leafwise(
        self, state: CorrectByMARSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        if self.is_approx:
            return Leafwise(mars, state)
        previous_grad = required(self, extra, "previous_grad")
        return Leafwise(exact_mars, state, reads={"previous_grad": previous_grad})


MARSType: TypeAlias = Literal["adamw", "lion", "shampoo"]


class _KnowsMatrices(AbstractTransformation):
    """Raises an error in `init` if it is not known whether a parameter is a matrix."""

    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> None:
        given = self.weight_dimension_numbers
        resolve_dimension_numbers(given, params, params, is_required=True)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, State]:
        return updates, state


class MARS(AbstractOptimizer):
    r"""MARS: variance reduction of the gradients, for AdamW, Lion or Shampoo.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where the corrected and clipped gradient of [`eqopt.CorrectByMARS`][] is the $g_t$ of
    [`eqopt.ScaleByAdam`][], which have the equations and the reference, with
    $\bar\varepsilon = 0$, and $u_t$ is the update for the `mars_type`:

    - `"adamw"`: the update of Adam;
    - `"lion"`: $u_t = \operatorname{sign}(\mu_t)$;
    - `"shampoo"`: the nearest orthogonal matrix to $\mu_t$, multiplied by
        $\sqrt{\max(1, m / n)}$ for $m$ outputs and $n$ inputs. See
        [`eqopt.Orthogonalize`][].

    All of this applies to matrices. By default, other parameters, such as biases, use
    AdamW with plain gradients.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.003.
    - `mars_type`: `"adamw"`, `"lion"` or `"shampoo"`.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment of `"adamw"`.
    - `eps`: $\varepsilon \ge 0$, see [`eqopt.ScaleByAdam`][] and
        [`eqopt.Orthogonalize`][].
    - `gamma`, `max_norm`, `is_approx`: see [`eqopt.CorrectByMARS`][].
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `optimize_1d`: whether to apply this to all parameters, not only to matrices. Then
        `mask` applies to all parameters, and `fallback` is not used. If `mars_type` is
        `"shampoo"`, parameters that are not matrices use `"adamw"`.
    - `coefficients`, `steps`, `ns_dtype`: the `coefficients`, `steps` and `dtype` of
        [`eqopt.Orthogonalize`][], for `"shampoo"`.
    - `mu_dtype`: the dtype in which the momentum and the last gradients are stored.
        Defaults to the dtype of each parameter, at least float32 for the momentum.
    - `nu_dtype`: the dtype in which the second moment is stored. Defaults to the dtype
        of each parameter, at least float32.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if `mars_type` is unknown or a hyperparameter is out of its range.
    """

    learning_rate: ScalarOrSchedule
    mars_type: MARSType = static_choice(static=True, default="adamw")
    b1: Hyperparameter = 0.95
    b2: Hyperparameter = 0.99
    eps: Hyperparameter = 1e-8
    gamma: Hyperparameter = 0.025
    max_norm: Hyperparameter | None = 1.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    is_approx: bool = True
    optimize_1d: bool = static_choice(static=True, default=False)
    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    def __check_init__(self):
        check_choice(self, "mars_type", get_args(MARSType))
        check_real_dtype(self, "ns_dtype")
        check_moments(self)

    @property
    def chain(self) -> Chain:
        of_matrices, of_others = are_matrices(self), are_others(self)
        correct, known = self.part(CorrectByMARS), self.part(_KnowsMatrices)
        if not self.optimize_1d:
            chosen = [Masked(x, of_matrices) for x in (correct, *self._directions())]
            parts = matrices_and_others(self, *chosen).transformations
            if self.fallback is not None:
                # The parts for each leaf are last: they are fused with the final sum.
                parts = parts[-1], *parts[:-1]
            return Chain(known, *parts)
        if self.mars_type == "shampoo":
            directions = [
                known,
                *[Masked(x, of_matrices) for x in self._directions()],
                Masked(self.part(ScaleByAdam), of_others),
            ]
        else:
            directions = self._directions()
        return Chain(
            correct,
            *directions,
            self.part(AddDecayedWeights),
            self.part(ScaleByLearningRate),
        )

    def _directions(self) -> list[AbstractTransformation]:
        """The parts that compute the update from the corrected gradients."""
        if self.mars_type == "adamw":
            return [self.part(ScaleByAdam)]
        # A decaying sum is the mean divided by 1 - b1, so it has the same direction.
        momentum = Trace(self.b1, accumulator_dtype=self.mu_dtype)
        if self.mars_type == "lion":
            return [momentum, ScaleBySign()]
        orthogonalize = Orthogonalize(
            coefficients=self.coefficients,
            steps=self.steps,
            scale="shape",
            eps=self.eps,
            dtype=self.ns_dtype,
            weight_dimension_numbers=self.weight_dimension_numbers,
        )
        return [momentum, orthogonalize]
