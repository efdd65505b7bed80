"""An outer optimizer that treats many inner steps as one gradient."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._arguments.extra import required_params
from ..._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    add_updates,
    equation,
    leafwise,
    widened,
)
from ..._trees.control import filter_cond
from ..._trees.leaves import restrict
from ..._trees.states import check_state
from ..._trees.stored import shapes_if_stored
from ..._types import Count, Model, Params, State, Unit, ZeroOrMore
from ...tree._like import wide_copy, wide_zeros_like, zero_updates
from .copies import check_kept, count_step, take_slow_params


class OuterNesterovState(eqx.Module):
    """The parameters and the momentum of the outer optimizer.

    **Attributes:**

    - `inner_state`: the inner state.
    - `steps_since_sync`: the number of inner steps since the last outer step, a 0-d
        int32 array.
    - `slow`: the parameters after the last outer step, a tree like the parameters, in
        at least float32.
    - `trace`: the momentum of the outer steps, a tree like the parameters, in at least
        float32.
    """

    inner_state: State
    steps_since_sync: Int[Array, ""]
    slow: Params
    trace: Params


@equation(elementwise=True)
def outer_nesterov(g, slow, trace, p, *, learning_rate, momentum):
    # From the result of the inner steps instead of `slow`: if the outer step is to keep
    # it, it is kept to the last bit.
    inner = p + g
    delta = slow - inner
    trace = momentum * trace + delta
    slow = inner + ((1 - learning_rate) * delta - learning_rate * momentum * trace)
    return slow - p, slow, trace


class OuterNesterov(AbstractWrapper):
    r"""Treats every $H$ inner steps as one gradient for Nesterov momentum.

    After $H$ inner steps from $\theta$, the result of the last outer step, to
    $\theta'$, the outer step is

    $$\begin{aligned}
      \Delta &= \theta - \theta' \\
      b &\leftarrow \mu b + \Delta & b_0 &= 0 \\
      \theta &\leftarrow \theta - \eta\, (\Delta + \mu b)
        = \theta' + (1 - \eta)\, \Delta - \eta \mu b
    \end{aligned}$$

    and the inner optimizer continues from there with its state unchanged. This is
    DiLoCo with one worker, also known as SNOO; with Muon as the inner optimizer, it is
    MuLoCo. The learning rate of `inner` keeps its own schedule.
    `opt.eval_params(state, params)` returns the result of the last outer step. Evaluate
    with it.

    For several workers, or another outer optimizer, see [`eqopt.DiLoCo`][].

    !!! example

        ```python
        opt = eqopt.OuterNesterov(eqopt.Muon(0.02), period=30, momentum=0.5)
        ```

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain.

    **Arguments:**

    - `inner`: the inner optimizer.
    - `period`: $H \ge 1$, an integer. Defaults to 30.
    - `learning_rate`: $\eta \ge 0$, the learning rate of the outer steps. With 1 and no
        momentum, `step` gives the result of `inner` to the last bit. Defaults to 0.7.
    - `momentum`: $\mu \in [0, 1)$. Defaults to 0.9.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`.

    ??? cite "Reference"

        ```bibtex
        @article{douillard2023diloco,
            author = {Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and
                      Chhaparia, Rachita and Donchev, Yani and Kuncoro, Adhiguna and
                      Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun},
            title = {{DiLoCo}: Distributed Low-Communication Training of Language Models},
            journal = {arXiv:2311.08105},
            year = {2023},
        }
        ```
    """

    _moves_params = True

    inner: AbstractTransformation
    period: Count = 30
    learning_rate: ZeroOrMore = 0.7
    momentum: Unit = 0.9

    def init(self, params: Params) -> OuterNesterovState:
        return OuterNesterovState(
            inner_state=self.inner.init(params),
            steps_since_sync=jnp.zeros((), jnp.int32),
            slow=wide_copy(params),
            trace=wide_zeros_like(params),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the parameters after the last outer step.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return take_slow_params(state, params)

    def handle(
        self, call: Call, state: OuterNesterovState
    ) -> tuple[Any, OuterNesterovState]:
        required_params(self, call.params)
        check_kept("slow", state.slow, call.updates)
        result, inner_state = call.run(self.inner, state.inner_state)
        due, count = count_step(state.steps_since_sync, self.period)
        result, slow, trace = filter_cond(
            due,
            lambda: self._synchronize(call, result, state.slow, state.trace),
            lambda: (result, state.slow, state.trace),
        )
        return result, OuterNesterovState(inner_state, count, slow, trace)

    def _synchronize(
        self, call: Call, result: Any, slow: Params, trace: Params
    ) -> tuple[Any, Params, Params]:
        """The result of an outer step, from the result of the inner one."""
        params, updates = call.params, result
        if call.is_step:
            part = shapes_if_stored(restrict(result, call.updates))
            params, updates = result, widened(zero_updates(part))
        updates, slow, trace = leafwise(
            outer_nesterov,
            updates,
            slow,
            trace,
            reads={"p": params},
            learning_rate=self.learning_rate,
            momentum=self.momentum,
        )
        result = add_updates(params, updates) if call.is_step else updates
        return result, slow, trace
