"""MARS: variance reduction of the gradients, for AdamW, Lion and Shampoo."""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

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
from ..._matrices import DimensionNumbers, resolve_dimension_numbers
from ..._transforms.block import block_norm
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import (
    Leaf,
    Mask,
    Params,
    Positive,
    ScalarOrSchedule,
    Size,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...tree import zeros_like
from ..adam.adam import ScaleByAdam
from ..sign.sign import ScaleBySign
from .orthogonalize import Orthogonalize
from .parts.newton_schulz import Coefficients
from .parts.recipe import are_matrices, are_others, matrices_and_others


class CorrectByMARSState(eqx.Module):
    """`previous_gradient`: the gradients of the last step; `None` if not `is_approx`."""

    previous_gradient: Updates | None


def _corrected(g, previous, gamma, b1, max_norm):
    c = g + gamma * b1 / (1 - b1) * (g - previous)
    return c if max_norm is None else c / jnp.maximum(1, block_norm(c) / max_norm)


@equation
def mars(g: Leaf, previous_gradient: Leaf, *, gamma, b1, max_norm) -> tuple[Leaf, Leaf]:
    return _corrected(g, previous_gradient, gamma, b1, max_norm), g


@equation
def exact_mars(g: Leaf, previous_grad: Leaf, *, gamma, b1, max_norm) -> Leaf:
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
        Defaults to 0.025.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum that follows. Defaults to
        0.95.
    - `max_norm`: $C > 0$, or `None` for no clipping. Defaults to 1.0.
    - `is_approx`: whether $\tilde g_t$ are the gradients of the last step. This needs a
        copy of them in the state, but no second gradient. Defaults to `True`.
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

    _stores_in_turn = True

    gamma: ZeroOrMore = 0.025
    b1: Unit = 0.95
    max_norm: Positive | None = 1.0
    is_approx: bool = True
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> CorrectByMARSState:
        # A copy of a gradient is exact in the dtype of the parameter.
        previous = zeros_like(params, self.mu_dtype) if self.is_approx else None
        return CorrectByMARSState(previous)

    def leafwise(
        self, state: CorrectByMARSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        if self.is_approx:
            return Leafwise(mars, state)
        previous_grad = required(extra, "previous_grad")
        return Leafwise(exact_mars, state, reads={"previous_grad": previous_grad})


MARSType: TypeAlias = Literal["adamw", "lion", "shampoo"]


class _KnowsMatrices(AbstractTransformation):
    """Raises an error in `init` if it is not known whether a parameter is a matrix."""

    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> None:
        given = self.weight_dimension_numbers
        resolve_dimension_numbers(given, params, params, is_required=True)

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        return updates, state


class MARS(AbstractOptimizer):
    r"""MARS: variance reduction of the gradients, for AdamW, Lion or Shampoo.

    !!! abstract "One step"

        $$c_t = g_t + \gamma \frac{\beta_1}{1 - \beta_1}\, (g_t - \tilde g_t), \qquad
          h_t = c_t / \max(1, \|c_t\|_2 / C)$$

        with the norm over each leaf.

        With `is_approx`, $\tilde g_t = g_{t-1}$, the gradients of the last step, and
        $\tilde g_1 = 0$.

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, h_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |h_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t} + \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $h_t$ is the corrected and clipped gradient of [`eqopt.CorrectByMARS`][],
        and $u_t$ depends on `mars_type`:

        - `"adamw"`: $u_t$ as above, the update of [`eqopt.ScaleByAdam`][];
        - `"lion"`: $u_t = \operatorname{sign}(\mu_t)$;
        - `"shampoo"`: the nearest orthogonal matrix to $\mu_t$, multiplied by
            $\sqrt{\max(1, m / n)}$ for $m$ outputs and $n$ inputs.
            [`eqopt.Orthogonalize`][] computes it.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.95),
        $\beta_2$ is `b2` (0.99), $\varepsilon$ is `eps` (1e-8), $\gamma$ is `gamma`
        (0.025), $C$ is `max_norm` (1.0), $\lambda$ is `weight_decay` (0.0). By default,
        `mars_type` is `"adamw"`, `is_approx` is `True`. Parameters that are not
        matrices use `fallback`, by default [`eqopt.AdamW`][].

    All of this applies to matrices. By default, other parameters, such as biases, use
    AdamW with plain gradients.

    !!! example

        ```python
        opt = eqopt.MARS(3e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.003.
    - `mars_type`: `"adamw"`, `"lion"` or `"shampoo"`. Defaults to `"adamw"`.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.95.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment of `"adamw"`. Defaults
        to 0.99.
    - `eps`: $\varepsilon \ge 0$, outside the root of `"adamw"`. For `"shampoo"`, it is
        added to the norm of each matrix. Defaults to 1e-8.
    - `gamma`: $\gamma \ge 0$, how much to correct. With 0, gradients are only clipped.
        Defaults to 0.025.
    - `max_norm`: $C > 0$, or `None` for no clipping. Defaults to 1.0.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `is_approx`: whether $\tilde g_t$ are the gradients of the last step. This needs a
        copy of them in the state, but no second gradient. Defaults to `True`.
    - `optimize_1d`: whether to apply this to all parameters, not only to matrices. Then
        `mask` applies to all parameters, and `fallback` is not used. If `mars_type` is
        `"shampoo"`, parameters that are not matrices use `"adamw"`. Defaults to
        `False`.
    - `coefficients`: the coefficients of the iteration for `"shampoo"`: $(a, b, c)$ for
        all steps, or one row for each step, as a tuple or an array; or the name of a
        published set: `"standard"` (the set of Muon), `"dion"`, `"polar_express"` (5
        steps), `"polar_express_8"`, `"cans"`, `"aol"`, `"cubic"`, `"deepseek"` or
        `"simple"` ($2, -\frac32, \frac12$, 12 steps). The name also determines the
        factor $c$ of the norm, which is otherwise 1. Defaults to `"standard"`.
    - `steps`: the number of steps of this iteration. Defaults to `None`, which means
        the number of rows, or 5 for a single row. If there are more steps than rows,
        the rows start again; Polar Express, CANS and DeepSeek repeat the last row.
    - `ns_dtype`: the dtype of the iteration for `"shampoo"`. Defaults to `None`: a CPU
        then iterates in float32, and accelerators in bfloat16 with the coefficients
        `"standard"`, `"dion"`, `"polar_express"`, `"aol"`, `"deepseek"` and `"simple"`.
        With other coefficients, and for matrices that are complex or in float64, the
        matrix keeps its dtype.
    - `mu_dtype`: the dtype in which the momentum and the last gradients are stored.
        Defaults to `None`, which means the dtype of each parameter, at least float32
        for the momentum.
    - `nu_dtype`: the dtype in which the second moment is stored. Defaults to `None`,
        which means the dtype of each parameter, at least float32.
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

    A `ValueError` if `mars_type` is unknown or a hyperparameter is out of its range.

    **When to use it:** instead of AdamW, Lion or Muon, if noisy gradients slow training
    down. The authors claim lower losses than AdamW on language models in as many steps.
    On eqopt's small workloads, it does not take fewer steps than AdamW. It also stores
    a copy of the gradients. Without `is_approx`, it computes a second gradient in each
    step instead.

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

    learning_rate: ScalarOrSchedule
    mars_type: MARSType = static_choice(static=True, default="adamw")
    b1: Unit = 0.95
    b2: Unit = 0.99
    eps: ZeroOrMore = 1e-8
    gamma: ZeroOrMore = 0.025
    max_norm: Positive | None = 1.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    is_approx: bool = True
    optimize_1d: bool = static_choice(static=True, default=False)
    coefficients: Coefficients = "standard"
    steps: Size | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

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
        part = self.part(Orthogonalize, scale="shape", dtype=self.ns_dtype)
        return [momentum, part]
