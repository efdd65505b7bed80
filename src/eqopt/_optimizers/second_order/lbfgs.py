"""L-BFGS: the inverse of the Hessian, estimated from the last few steps."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._linesearch.zoom import ScaleByZoomLinesearch
from ..._transforms.scale import Scale, ScaleByLearningRate
from ..._trees.leaves import map_parameters, parameters
from ..._trees.precision import compute_dtype
from ..._trees.states import check_size, check_state
from ..._types import Params, PerLeaf, PyTree, ScalarOrSchedule, Size, State, Updates
from ...tree import zeros_like
from ...tree._like import wide_zeros_like
from .inverse_hessian import times_inverse


class ScaleByLBFGSState(eqx.Module):
    """The last few steps.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `params`, `updates`: the parameters and updates of the last step.
    - `diff_params_memory`, `diff_updates_memory`: the differences $s_i$ and $y_i$ of
        the last `memory_size` steps in at least float32, stacked along a new first
        axis. The difference of step $i$ has the index $i$ modulo `memory_size`.
    - `weights_memory`: $1 / \\langle s_i, y_i \\rangle$, or 0 for a pair that is
        ignored.
    - `trained`: whether each parameter had an update in the last step, 0-d bool arrays.
    """

    count: Int[Array, ""]
    params: PyTree
    updates: PyTree
    diff_params_memory: PerLeaf
    diff_updates_memory: PerLeaf
    weights_memory: Float[Array, " memory"]
    trained: PerLeaf


class ScaleByLBFGS(AbstractTransformation):
    r"""Multiplies the updates by an estimate of the inverse of the Hessian.

    With the differences of the last parameters and gradients, $s_i = p_{i+1} - p_i$ and
    $y_i = g_{i+1} - g_i$, the estimate is $H_t$, where

    $$\begin{aligned}
      H_{i+1} &= V_i^\top H_i V_i + \rho_i s_i s_i^\top, \qquad
        V_i = I - \rho_i y_i s_i^\top, \quad \rho_i = 1 / \langle s_i, y_i \rangle, \\
      H_{t-m} &= \gamma I, \qquad
        \gamma = \langle s_{t-1}, y_{t-1} \rangle / |y_{t-1}|^2,
    \end{aligned}$$

    for the last $m$ steps. Before the first of these, $\gamma = \min(1, 1 / |g|)$.

    Computing $u = H_t g$ takes $4 m$ passes over arrays of the size of the parameters.
    The state has $2 m + 2$ such arrays.

    Only pairs with $\langle s_i, y_i \rangle > \varepsilon\, |s_i| |y_i|$ count, with
    the rounding error $\varepsilon$: others would make $H$ infinite or negative. If the
    parameters have not moved, for example after a failed line search, all pairs are
    discarded, and the next direction is the gradient. The same happens if a leaf is
    frozen or unfrozen: if it has an update in this step, but had none in the last, or the
    other way round.

    Do not use it for gradients of mini-batches, because these differ by more than the
    curvature. All leaves form one vector. A complex parameter counts as two real
    parameters. Pass conjugated gradients: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `memory_size`: $m \ge 1$, an integer. Defaults to 10.
    - `scale_init_precond`: whether to use $\gamma$. Otherwise, it is replaced by 1.
        Defaults to `True`.

    **Raises:**

    A `ValueError` if `memory_size` is not an integer of at least 1, and in `update` if
    `params` is missing, or if there is an update for a leaf that was not in `init`.

    ??? cite "Reference"

        ```bibtex
        @article{liu1989limited,
            author = {Liu, Dong C. and Nocedal, Jorge},
            title = {On the Limited Memory {BFGS} Method for Large Scale Optimization},
            journal = {Mathematical Programming},
            volume = {45},
            pages = {503--528},
            year = {1989},
        }
        ```
    """

    memory_size: Size = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)

    def init(self, params: Params) -> ScaleByLBFGSState:
        # A stack of arrays that are all sharded like the parameter.
        stacked = lambda x: jnp.stack([x] * self.memory_size)
        return ScaleByLBFGSState(
            jnp.zeros((), jnp.int32),
            zeros_like(params),
            zeros_like(params),
            map_parameters(stacked, wide_zeros_like(params)),
            map_parameters(stacked, wide_zeros_like(params)),
            jnp.zeros(self.memory_size, compute_dtype(parameters(params))),
            map_parameters(lambda x: jnp.zeros((), bool), parameters(params)),
        )

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ScaleByLBFGSState]:
        check_state(self, state)
        check_size(self, "memory_size", len(state.weights_memory))
        params = required_params("ScaleByLBFGS", params)
        return times_inverse(self, updates, state, params, self.scale_init_precond)


class LBFGS(AbstractOptimizer):
    r"""L-BFGS, for losses that are the same in each step, with a line search.

    !!! abstract "One step"

        With the differences of the last parameters and gradients, $s_i = p_{i+1} - p_i$
        and $y_i = g_{i+1} - g_i$, the estimate is $H_t$, where

        $$\begin{aligned}
          H_{i+1} &= V_i^\top H_i V_i + \rho_i s_i s_i^\top, \qquad
            V_i = I - \rho_i y_i s_i^\top, \quad \rho_i = 1 / \langle s_i, y_i \rangle,
                \\
          H_{t-m} &= \gamma I, \qquad
            \gamma = \langle s_{t-1}, y_{t-1} \rangle / |y_{t-1}|^2,
        \end{aligned}$$

        for the last $m$ steps. Before the first of these, $\gamma = \min(1, 1 / |g|)$.

        $$p_t = p_{t-1} - \eta_t H_t g_t,$$

        with the step size $\eta_t$ from [`eqopt.ScaleByZoomLinesearch`][], and the
        inverse Hessian $H_t$ of [`eqopt.ScaleByLBFGS`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $m$ is `memory_size`
        (10).

    It needs fewer steps than first-order optimizers, and usually one evaluation of the
    loss and its gradient for each. For losses of mini-batches, use another optimizer.
    Derivatives of the step treat the step size of the line search as a constant.

    For complex parameters, pass conjugated gradients, both as `grads` and as `grad`.

    !!! example

        ```python
        opt = eqopt.LBFGS()
        state = opt.init(model)
        value_and_grad = eqopt.value_and_grad_from_state(loss_fn)

        @eqx.filter_jit
        def train_step(model, state):
            value, grads = value_and_grad(model, state=state)
            return opt.step(
                grads, state, model, value=value, grad=grads, value_fn=loss_fn
            )
        ```

    **Arguments:**

    - `learning_rate`: a factor before the line search, a number, a 0-d array or a
        schedule. Defaults to `None`, which means 1.
    - `memory_size`: $m$, the number of steps to remember, an integer of at least 1.
        Defaults to 10.
    - `scale_init_precond`: whether to use $\gamma$. Otherwise, it is replaced by 1.
        Defaults to `True`.
    - `linesearch`: a transformation that comes last, or `None` for no line search.
        Defaults to `eqopt.ScaleByZoomLinesearch(20, initial_guess_strategy="one")`.

    **Raises:**

    The errors of [`eqopt.ScaleByLBFGS`][] and of the line search.

    ??? cite "Reference"

        ```bibtex
        @article{liu1989limited,
            author = {Liu, Dong C. and Nocedal, Jorge},
            title = {On the Limited Memory {BFGS} Method for Large Scale Optimization},
            journal = {Mathematical Programming},
            volume = {45},
            pages = {503--528},
            year = {1989},
        }
        ```
    """

    learning_rate: ScalarOrSchedule | None = None
    memory_size: Size = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)
    linesearch: AbstractTransformation | None = ScaleByZoomLinesearch(
        20, initial_guess_strategy="one"
    )

    @property
    def chain(self) -> Chain:
        rate = self.learning_rate
        parts = (
            self.part(ScaleByLBFGS),
            Scale(-1.0) if rate is None else ScaleByLearningRate(rate),
            self.linesearch,
        )
        return Chain(*(part for part in parts if part is not None))
