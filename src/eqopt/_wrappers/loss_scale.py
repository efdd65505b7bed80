"""Loss scaling, for training in float16, in which gradients underflow."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arguments.checks import check_fields, check_interval
from .._arguments.extra import given_norm
from .._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    check_wide,
    equation,
    leafwise,
    rounded_like,
    widened,
)
from .._jax_internals import is_traced
from .._trees.control import filter_cond
from .._trees.states import check_state
from .._trees.stored import hides_params
from .._types import Count, Hyperparameter, Interval, OpenUnit, Params, Positive, State
from ..numerics._numerics import at_least_float32, safe_increment
from .skip_step import are_finite


# The inverse of a larger power of two is not a normal number in float32.
_MAX_SCALE = 2.0**126


class DynamicLossScaleState(eqx.Module):
    """The scale, and the counts of skipped steps.

    **Attributes:**

    - `loss_scale`: the factor for the next loss, a 0-d float32 array.
    - `good_steps`: the number of consecutive steps with finite gradients since the last
        change of the scale, a 0-d int32 array.
    - `last_finite`: whether the last gradients were finite, a 0-d bool array.
    - `total_notfinite`: the number of gradients that were not finite, a 0-d int32
        array.
    - `inner_state`: the inner state.
    """

    loss_scale: Float[Array, ""]
    good_steps: Int[Array, ""]
    last_finite: Bool[Array, ""]
    total_notfinite: Int[Array, ""]
    inner_state: State


@equation(elementwise=True)
def unscale(g, *, loss_scale):
    return g / loss_scale


class DynamicLossScale(AbstractWrapper):
    r"""Trains on the gradients of $S \cdot L$ instead of the gradients of the loss $L$.

    In float16, a gradient below 3e-8 is zero, and a gradient below 6e-5 loses digits.
    If the loss is scaled up, so are the gradients throughout the backward pass. This
    wrapper divides them by $S$ again, in float32:

    $$u = \text{inner}(g / S), \qquad g = \nabla (S L).$$

    If $g$ contains a NaN or an infinity, $S$ was too large: the step is skipped, and
    $S \leftarrow \max(b S, S_{\min})$. After `growth_interval` consecutive steps with
    finite gradients, $S \leftarrow a S$. If $a$ and $b$ are powers of two, as they are
    by default, multiplying and dividing by $S$ causes no rounding.

    !!! example

        ```python
        opt = eqopt.DynamicLossScale(eqopt.AdamW(1e-3))

        @eqx.filter_jit
        def train_step(model, state, batch):
            def scaled_loss(model):
                loss = loss_fn(model, batch)
                return opt.scale_loss(loss, state), loss

            grads, loss = eqx.filter_grad(scaled_loss, has_aux=True)(model)
            model, state = opt.step(grads, state, model, value=loss)
            return model, state, loss
        ```

    If a transformation inside uses the extra argument `value`, pass the loss itself,
    not the scaled loss. `grad`, `previous_grad` and `grad_norm`, however, are of the
    scaled loss, like the gradients that are passed: they are divided, too.

    A skipped step changes only the counters and the scale; with `step`, it moves no
    memory. Half-precision gradients are converted to float32 before they are divided,
    and `inner` sees float32. `update` returns the updates of `inner` in the dtype of the
    gradients.

    Put it outside everything else, because every transformation that uses gradients
    must get the gradients of the loss. This holds for the norms in
    `DynamicLossScale(SkipStep(AdamW(1e-3), rule))` and in
    `DynamicLossScale(Chain(ClipByGlobalNorm(1.0), AdamW(1e-3)))`. In
    `DynamicLossScale(MultiSteps(AdamW(1e-3), 8))`, each mini-step is divided by its own
    scale, and skipped separately. In `MultiSteps(DynamicLossScale(AdamW(1e-3)), 8)`,
    one overflow would cost all 8.

    bfloat16 has the range of float32 and does not need loss scaling.

    **Arguments:**

    - `inner`: the optimizer.
    - `init_scale`: the first $S$, from $S_{\min}$ to $2^{126}$. Defaults to $2^{15}$.
    - `growth_interval`: an integer of at least 1. Defaults to 2000.
    - `growth_factor`: $a \ge 1$. $S$ does not grow beyond $2^{126}$. Defaults to 2.0.
    - `backoff_factor`: $b \in (0, 1)$. Defaults to 0.5.
    - `min_scale`: $S_{\min} > 0$. Defaults to 1.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{micikevicius2018mixed,
            author = {Micikevicius, Paulius and Narang, Sharan and Alben, Jonah and
                      Diamos, Gregory and Elsen, Erich and Garcia, David and Ginsburg,
                      Boris and Houston, Michael and Kuchaiev, Oleksii and Venkatesh,
                      Ganesh and Wu, Hao},
            title = {Mixed Precision Training},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """

    inner: AbstractTransformation
    init_scale: Positive = 2.0**15
    growth_interval: Count = 2000
    growth_factor: Annotated[Hyperparameter, Interval(1)] = 2.0
    backoff_factor: OpenUnit = 0.5
    min_scale: Positive = 1.0

    def __check_init__(self) -> None:
        check_fields(self)
        low: Any = self.min_scale
        if not (callable(low) or is_traced(low)):
            # An overflow would not reduce a smaller scale.
            fix, first = "Lower `min_scale`, too.", self.init_scale
            check_interval("init_scale", first, low, _MAX_SCALE, advice=fix)

    def init(self, params: Params) -> DynamicLossScaleState:
        return DynamicLossScaleState(
            loss_scale=jnp.array(self.init_scale, jnp.float32),
            good_steps=jnp.zeros((), jnp.int32),
            last_finite=jnp.ones((), bool),
            total_notfinite=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
        )

    def scale_loss(self, loss: Float[Array, ""], state: State) -> Float[Array, ""]:
        """The function to differentiate: the loss, multiplied by the scale.

        **Arguments:**

        - `loss`: the loss, a 0-d array.
        - `state`: as returned by `init` or the last `step`.

        **Returns:**

        A 0-d array, at least float32.
        """
        check_state(self, state)
        loss = at_least_float32(loss)
        return loss * state.loss_scale.astype(loss.dtype)

    def handle(self, call: Call, state: DynamicLossScaleState) -> tuple[Any, State]:
        finite = are_finite(call)
        result, inner_state = filter_cond(
            finite,
            lambda: self._unscaled(call, state),
            lambda: (call.nothing(), state.inner_state),
        )
        scalar = lambda x: jnp.asarray(x).astype(jnp.float32)
        scale, good_steps = state.loss_scale, state.good_steps + 1
        grows = good_steps >= jnp.asarray(self.growth_interval, jnp.int32)
        larger = scale * scalar(self.growth_factor)
        larger = jnp.where(grows & (larger <= _MAX_SCALE), larger, scale)
        smaller = scale * scalar(self.backoff_factor)
        smaller = jnp.maximum(smaller, scalar(self.min_scale))
        total = state.total_notfinite
        return result, DynamicLossScaleState(
            loss_scale=jnp.where(finite, larger, smaller),
            good_steps=jnp.where(finite & ~grows, good_steps, 0),
            last_finite=finite,
            total_notfinite=jnp.where(finite, total, safe_increment(total)),
            inner_state=inner_state,
        )

    def _unscaled(self, call: Call, state: DynamicLossScaleState) -> tuple[Any, State]:
        if not call.is_step and hides_params(state.inner_state):
            check_wide(call.updates)
        scale, extra = state.loss_scale, dict(call.extra)
        unscaled = lambda grads: leafwise(unscale, widened(grads), loss_scale=scale)
        for name in ("grad", "previous_grad"):
            if extra.get(name) is not None:
                extra[name] = unscaled(extra[name])
        length = given_norm(extra)
        if length is not None:
            extra["grad_norm"] = length / scale
        updates = unscaled(call.updates)
        own = call._replace(updates=updates, extra=extra, gradients=updates)
        result, inner_state = own.run(self.inner, state.inner_state)
        if not call.is_step:
            result = rounded_like(result, call.updates)
        return result, inner_state
