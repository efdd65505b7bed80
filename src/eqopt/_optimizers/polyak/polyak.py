"""Polyak's step size, from the value of the loss."""

from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._arguments.extra import check_number
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, leafwise
from ..._transforms.scale import ScaleByLearningRate, at, scale
from ..._trees.states import check_state
from ..._types import (
    Hyperparameter,
    Interval,
    Params,
    RealScalarLike,
    Scalar,
    ScalarOrSchedule,
    State,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import safe_increment
from ...tree import norm


def capped_ratio(gap: Scalar, slope: Scalar, cap: Scalar) -> Scalar:
    """The smaller of `gap / slope` and `cap`, or 0 where `slope` is 0.

    This is the distance at which a line that starts at `gap` reaches zero. Differs from
    Optax in: every nonzero slope counts. Optax takes no step if the squared norm of the
    gradient is below 2.2e-16.
    """
    is_flat = slope == 0
    is_capped = gap >= cap * slope
    ratio = gap / jnp.where(is_flat | is_capped, 1, slope)
    return jnp.where(is_flat, 0, jnp.where(is_capped, cap, ratio))


class ScaleByPolyakState(eqx.Module):
    """`count`: the steps taken so far, a 0-d int32 array; `None` without a schedule."""

    count: Int[Array, ""] | None


class ScaleByPolyak(AbstractTransformation):
    r"""Scales all updates together, by Polyak's step size.

    $$u = g \cdot \min\left(\frac{f - f^*}{\|g\|_2^2 + \varepsilon},
                            \gamma_{\max}\right),$$

    where $g$ is the gradient, and $f$ the loss.

    `update` and `step` need the loss as the extra argument `value`. A linear model of
    the loss decreases from $f$ to $f^*$ in a step of this size. Zero updates stay zero.

    **Arguments:**

    - `f_min`: $f^*$, a number or a 0-d array: the smallest value of the loss, or an
        estimate of it. Use zero for a model that can fit its data. Defaults to 0.0.
    - `max_learning_rate`: $\gamma_{\max} \ge 0$, which may be infinite; a number, a 0-d
        array or a schedule. Defaults to 1.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 0.0.
    - `variant`: `"sps"`, or `"sps+"` with $(f - f^*)_+$ instead of $f - f^*$. If the
        loss is below `f_min`, `"sps+"` does not move, and `"sps"` moves uphill.
        Defaults to `"sps"`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if there is no such
    `variant`, and in `update` if `value` is missing.

    ??? cite "References"

        ```bibtex
        @inproceedings{loizou2021stochastic,
            author = {Loizou, Nicolas and Vaswani, Sharan and Laradji, Issam and
                      Lacoste-Julien, Simon},
            title = {Stochastic {P}olyak Step-size for {SGD}: An Adaptive Learning Rate
                     for Fast Convergence},
            booktitle = {International Conference on Artificial Intelligence and
                         Statistics},
            year = {2021},
        }

        @misc{garrigos2023function,
            author = {Garrigos, Guillaume and Gower, Robert M. and Schaipp, Fabian},
            title = {Function Value Learning: Adaptive Learning Rates Based on the
                     {P}olyak Stepsize and Function Splitting in {ERM}},
            year = {2023},
            eprint = {2307.14528},
            archivePrefix = {arXiv},
        }
        ```
    """

    _loads = "nothing"

    f_min: Hyperparameter = 0.0
    max_learning_rate: Annotated[ScalarOrSchedule, Interval(0)] = 1.0
    eps: ZeroOrMore = 0.0
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")

    def init(self, params: Params) -> ScaleByPolyakState:
        is_scheduled = callable(self.max_learning_rate)
        return ScaleByPolyakState(jnp.zeros((), jnp.int32) if is_scheduled else None)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_number("value", value)
        cap = at(self, "max_learning_rate", state.count)
        squared_norm = norm(updates, squared=True)
        numbers = value, self.f_min, self.eps, cap
        value, f_min, eps, cap = (jnp.asarray(x, squared_norm.dtype) for x in numbers)
        gap = value - f_min
        if self.variant == "sps+":
            gap = jnp.maximum(gap, 0)
        step_size = capped_ratio(gap, squared_norm + eps, cap)
        if state.count is not None:
            state = ScaleByPolyakState(safe_increment(state.count))
        return leafwise(scale, updates, step_size=step_size), state


class PolyakSGD(AbstractOptimizer):
    r"""Gradient descent whose learning rate is computed from the loss.

    !!! abstract "One step"

        $$u_t = g_t \cdot \min\left(\frac{f_t - f^*}{\|g_t\|_2^2 + \varepsilon},
                                \gamma_{\max}\right),$$

        where $g_t$ is the gradient, and $f_t$ the loss.

        $$p_t = p_{t-1} - s_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByPolyak`][].

        $\gamma_{\max}$ is `max_learning_rate` (1.0), $s$ is `scaling` (1.0), $f^*$ is
        `f_min` (0.0), $\varepsilon$ is `eps` (0.0).

    `update` and `step` need the loss $f_t$ as the extra argument `value`.

    !!! example

        ```python
        opt = eqopt.PolyakSGD()
        state = opt.init(model)
        value, grads = eqx.filter_value_and_grad(loss_fn)(model)
        model, state = opt.step(grads, state, model, value=value)
        ```

    **Arguments:**

    - `max_learning_rate`: $\gamma_{\max} \ge 0$, which may be infinite; a number, a 0-d
        array or a schedule. Defaults to 1.0.
    - `scaling`: $s$, a number, a 0-d array or a schedule.
        `eqopt.tree.get(state, "learning_rate")` returns it. Defaults to 1.0.
    - `f_min`: $f^*$, a number or a 0-d array: the smallest value of the loss, or an
        estimate of it. Use zero for a model that can fit its data. Defaults to 0.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 0.0.
    - `variant`: `"sps"`, or `"sps+"` with $(f - f^*)_+$ instead of $f - f^*$. If the
        loss is below `f_min`, `"sps+"` does not move, and `"sps"` moves uphill.
        Defaults to `"sps"`.

    **When to use it:** for models that can fit their data, so that the loss of every
    batch goes to zero. Otherwise, a wrong `f_min` makes the steps too large to
    converge, unless a small `max_learning_rate` or a decaying `scaling` compensates.

    ??? cite "References"

        ```bibtex
        @inproceedings{loizou2021stochastic,
            author = {Loizou, Nicolas and Vaswani, Sharan and Laradji, Issam and
                      Lacoste-Julien, Simon},
            title = {Stochastic {P}olyak Step-size for {SGD}: An Adaptive Learning Rate
                     for Fast Convergence},
            booktitle = {International Conference on Artificial Intelligence and
                         Statistics},
            year = {2021},
        }

        @misc{garrigos2023function,
            author = {Garrigos, Guillaume and Gower, Robert M. and Schaipp, Fabian},
            title = {Function Value Learning: Adaptive Learning Rates Based on the
                     {P}olyak Stepsize and Function Splitting in {ERM}},
            year = {2023},
            eprint = {2307.14528},
            archivePrefix = {arXiv},
        }
        ```
    """

    max_learning_rate: Annotated[ScalarOrSchedule, Interval(0)] = 1.0
    scaling: Annotated[ScalarOrSchedule, Interval(0)] = 1.0
    f_min: Hyperparameter = 0.0
    eps: ZeroOrMore = 0.0
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")

    # Differs from Optax in: the gradient is scaled by s after the step size is
    # computed. If it were scaled before, s would be squared in the norm, and a smaller
    # s would lead to larger steps.
    @property
    def chain(self) -> Chain:
        return Chain(self.part(ScaleByPolyak), ScaleByLearningRate(self.scaling))
