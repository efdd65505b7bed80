"""Rprop: a step size for each element, by whether its gradient changes sign."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ..._arguments.checks import check_fields, check_interval
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.scale import Scale, at
from ..._types import (
    Hyperparameter,
    Interval,
    Nonnegative,
    OpenUnit,
    Params,
    Positive,
    ScalarOrSchedule,
    Updates,
    ZeroOrMore,
)
from ...tree._like import real_full_like, wide_zeros_like
from ..moments import counted
from ..recipe import AbstractRecipe


class ScaleByRpropState(eqx.Module):
    """The step size and the last update of each element.

    **Attributes:**

    - `step_sizes`: the step sizes, a tree like the parameters, real also for complex
        parameters.
    - `prev_updates`: the last updates, before scaling by a schedule; zero where the
        gradient had changed its sign. Both are at least float32.
    - `count`: the steps taken so far, a 0-d int32 array.
    """

    step_sizes: Nonnegative
    prev_updates: Updates
    count: Int[Array, ""]


@equation(elementwise=True)
def rprop(
    g,
    step_sizes,
    prev_updates,
    *,
    eta_minus,
    eta_plus,
    min_step_size,
    max_step_size,
    ratio,
):
    # Differs from Optax in: the update of this step is applied, as in the paper and in
    # torch, not the update of the previous step. And it is a product of signs, because
    # the product of two small gradients is zero.
    agreement = (jnp.sign(g) * jnp.sign(prev_updates).conj()).real
    turned, agrees = agreement < 0, agreement > 0
    longer = jnp.minimum(eta_plus * step_sizes, max_step_size)
    shorter = jnp.maximum(eta_minus * step_sizes, min_step_size)
    # Not `jnp.select`, which XLA compiles for an accelerator as a sum over the cases.
    step_sizes = jnp.where(agrees, longer, jnp.where(turned, shorter, step_sizes))
    prev_updates = jnp.where(turned, 0, step_sizes * jnp.sign(g))
    return ratio * prev_updates, step_sizes, prev_updates


class ScaleByRprop(AbstractLeafwise):
    r"""The sign of the gradient, times an adaptive step size for each element.

    $$\begin{aligned}
      \Delta_t &= \begin{cases}
          \min(\eta_+ \Delta_{t-1}, \Delta_{\max}) & \text{if } g_t\, u_{t-1} > 0 \\
          \max(\eta_- \Delta_{t-1}, \Delta_{\min}) & \text{if } g_t\, u_{t-1} < 0 \\
          \Delta_{t-1} & \text{else}
        \end{cases} \\
      u_t &= \begin{cases}
          0 & \text{if } g_t\, u_{t-1} < 0 \\
          \Delta_t \operatorname{sign}(g_t) & \text{else}
        \end{cases}
    \end{aligned}$$

    If the gradient changes its sign, the step jumped over a minimum. The element then
    does not move for one step, and the next step is the third case. This is
    `torch.optim.Rprop`, except for complex elements. Their sign is $g / |g|$, and the
    product means $\operatorname{Re}(g_t \bar u_{t-1})$.

    **Arguments:**

    - `learning_rate`: $\Delta_0 > 0$, a number or a 0-d array. With a schedule $\eta$,
        it is $\eta(0)$, and the result is $u_t\, \eta(t) / \eta(0)$, $t = 0, 1, …$
    - `eta_minus`: $\eta_- \in (0, 1)$, the factor after a change of sign. Defaults to
        0.5.
    - `eta_plus`: $\eta_+ > 1$, the factor without a change of sign. Defaults to 1.2.
    - `min_step_size`, `max_step_size`: $\Delta_{\min}, \Delta_{\max}$, the bounds, also
        in the first step. The first is at least 0, the second above 0. Default to 1e-6
        and 50.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or a schedule does not start
    at a positive value. A `TypeError` for a stateful schedule.

    ??? cite "References"

        ```bibtex
        @inproceedings{riedmiller1993direct,
            author = {Riedmiller, Martin and Braun, Heinrich},
            title = {A Direct Adaptive Method for Faster Backpropagation Learning: The
                     {RPROP} Algorithm},
            booktitle = {IEEE International Conference on Neural Networks},
            year = {1993},
        }

        @article{igel2003empirical,
            author = {Igel, Christian and H{\"u}sken, Michael},
            title = {Empirical Evaluation of the Improved {Rprop} Learning Algorithms},
            journal = {Neurocomputing},
            volume = {50},
            year = {2003},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    eta_minus: OpenUnit = 0.5
    eta_plus: Annotated[Hyperparameter, Interval(1, includes_low=False)] = 1.2
    min_step_size: ZeroOrMore = 1e-6
    max_step_size: Positive = 50.0

    def __check_init__(self) -> None:
        check_fields(self)
        most = self.max_step_size
        if isinstance(most, float | int):
            check_interval("min_step_size", self.min_step_size, 0, most)
        first = self._initial()
        fix = "It is the first step size, also of a schedule."
        check_interval("learning_rate", first, 0, includes_low=False, advice=fix)

    def init(self, params: Params) -> ScaleByRpropState:
        numbers = self.min_step_size, self._initial(), self.max_step_size
        low, initial, high = (jnp.asarray(x, float) for x in numbers)
        return ScaleByRpropState(
            step_sizes=real_full_like(params, jnp.clip(initial, low, high)),
            prev_updates=wide_zeros_like(params),
            count=jnp.zeros((), jnp.int32),
        )

    def leafwise(
        self, state: ScaleByRpropState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        ratio = 1.0
        if callable(self.learning_rate):
            ratio = at(self, "learning_rate", state.count) / self._initial()
        return counted(self, rprop, state, ratio=ratio)

    def _initial(self) -> Any:
        rate = self.learning_rate
        # An array of JAX would start its backend as soon as an optimizer is created.
        start: Any = np.zeros((), np.int32)
        return at(self, "learning_rate", start) if callable(rate) else rate


class Rprop(AbstractRecipe):
    r"""Rprop: adaptive step sizes from signs, for gradients without noise.

    !!! abstract "One step"

        $$\begin{aligned}
          \Delta_t &= \begin{cases}
              \min(\eta_+ \Delta_{t-1}, \Delta_{\max}) & \text{if } g_t\, u_{t-1} > 0 \\
              \max(\eta_- \Delta_{t-1}, \Delta_{\min}) & \text{if } g_t\, u_{t-1} < 0 \\
              \Delta_{t-1} & \text{else}
            \end{cases} \\
          u_t &= \begin{cases}
              0 & \text{if } g_t\, u_{t-1} < 0 \\
              \Delta_t \operatorname{sign}(g_t) & \text{else}
            \end{cases}
        \end{aligned}$$

        $$p_t = p_{t-1} - u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByRprop`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $u_0 = 0$. $\Delta_0$ is `learning_rate`, $\eta_-$ is `eta_minus` (0.5),
        $\eta_+$ is `eta_plus` (1.2), $\Delta_{\min}$ is `min_step_size` (1e-6),
        $\Delta_{\max}$ is `max_step_size` (50.0).

    !!! example

        ```python
        opt = eqopt.Rprop(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\Delta_0$, the initial step size, a positive number or 0-d
        array, or a schedule that starts at a positive number.
    - `eta_minus`: $\eta_- \in (0, 1)$, the factor after a change of sign. Defaults to
        0.5.
    - `eta_plus`: $\eta_+ > 1$, the factor without a change of sign. Defaults to 1.2.
    - `min_step_size`, `max_step_size`: $\Delta_{\min}, \Delta_{\max}$, the bounds, also
        in the first step. The first is at least 0, the second above 0. Default to 1e-6
        and 50.0.

    **When to use it:** on the whole data set at once, or on other gradients without
    noise. On mini-batches, the signs change by chance, and the step sizes shrink to
    zero.

    ??? cite "References"

        ```bibtex
        @inproceedings{riedmiller1993direct,
            author = {Riedmiller, Martin and Braun, Heinrich},
            title = {A Direct Adaptive Method for Faster Backpropagation Learning: The
                     {RPROP} Algorithm},
            booktitle = {IEEE International Conference on Neural Networks},
            year = {1993},
        }

        @article{igel2003empirical,
            author = {Igel, Christian and H{\"u}sken, Michael},
            title = {Empirical Evaluation of the Improved {Rprop} Learning Algorithms},
            journal = {Neurocomputing},
            volume = {50},
            year = {2003},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    eta_minus: OpenUnit = 0.5
    eta_plus: Annotated[Hyperparameter, Interval(1, includes_low=False)] = 1.2
    min_step_size: ZeroOrMore = 1e-6
    max_step_size: Positive = 50.0

    _parts = ScaleByRprop, Scale(-1.0)
