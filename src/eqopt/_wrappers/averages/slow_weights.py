"""Slow parameters, which the fast ones meet after every few steps."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._arguments.construction import Module
from ..._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    add_updates,
    equation,
    incremental_update,
    leafwise,
    rounded_like,
    widened,
)
from ..._errors import InputError
from ..._trees.control import filter_cond
from ..._trees.leaves import is_leaf, parameters, restrict
from ..._trees.states import check_state
from ..._trees.stored import load, shapes_if_stored, store_like
from ..._types import ClosedUnit, Count, Model, Params, State, Unit, ZeroOrMore
from ...tree._like import copy, wide_copy, wide_zeros_like, zero_updates
from .copies import check_kept, count_step, match_params, restart, take_slow_params


class LookaheadParams(Module):
    """A pair of fast and slow parameters.

    **Attributes:**

    - `fast`: the parameters to take gradients with.
    - `slow`: the parameters to evaluate with.
    """

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> "LookaheadParams":
        """A pair with equal values in separate buffers."""
        return cls(fast=params, slow=eqx.combine(copy(params), params))


class LookaheadState(eqx.Module):
    """The state of [`eqopt.Lookahead`][].

    **Attributes:**

    - `fast_state`: the inner state.
    - `steps_since_sync`: the number of fast steps since the last slow step, a 0-d int32
        array.
    - `slow`: the slow weights, a tree like the parameters, in at least float32; `None`
        if the parameters are [`eqopt.LookaheadParams`][], which hold them.
    """

    fast_state: State
    steps_since_sync: Int[Array, ""]
    slow: Params | None


class Lookahead(AbstractWrapper):
    r"""Takes $k$ steps with the inner optimizer, then moves part of the way back.

    Every $k$-th step is followed by

    $$\phi \leftarrow \phi + \alpha\,(\theta - \phi), \qquad \theta \leftarrow \phi$$

    for the fast weights $\theta$ and the slow weights $\phi$.

    With plain parameters, such as a model, the slow weights are in the state.
    [`eqopt.Lookahead.eval_params`][] returns a model with them. It also accepts
    [`eqopt.LookaheadParams`][]: the gradients are then the gradients of the fast
    parameters only, and the updates are a pair. In a pair, the slow weights keep the
    dtype that they have.

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain.

    **Arguments:**

    - `inner`: the fast optimizer.
    - `sync_period`: $k \ge 1$, an integer.
    - `slow_step_size`: $\alpha \in [0, 1]$.
    - `reset_state`: whether the inner state is reset after each slow step. Its random
        keys continue, so that no noise repeats: these are the typed keys in the state,
        and all arrays of dtype uint32. Defaults to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhang2019lookahead,
            author = {Zhang, Michael R. and Lucas, James and Hinton, Geoffrey and Ba,
                      Jimmy},
            title = {Lookahead Optimizer: k Steps Forward, 1 Step Back},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """

    _moves_params = True
    _needs_params = True

    inner: AbstractTransformation
    sync_period: Count
    slow_step_size: ClosedUnit
    reset_state: bool = False

    def init(self, params: Params) -> LookaheadState:
        fast = params.fast if isinstance(params, LookaheadParams) else params
        is_pair = fast is not params
        return LookaheadState(
            fast_state=self.inner.init(fast),
            steps_since_sync=jnp.zeros((), jnp.int32),
            slow=None if is_pair else wide_copy(params),
        )

    def handle(self, call: Call, state: LookaheadState) -> tuple[Any, State]:
        params = call.params if call.is_step else load(call.params)
        fast, slow = self._split(state, params)
        check_kept("slow", slow, call.updates)
        new, fast_state = call._replace(params=fast).run(self.inner, state.fast_state)
        due, count = count_step(state.steps_since_sync, self.sync_period)
        if call.is_step:
            sync = lambda: self._synchronize(call.updates, new, slow, fast_state)
            stay = lambda: (new, slow, fast_state)
        else:
            moving = restrict(slow, new, "state.slow")
            sync = lambda: self._moved(new, fast, load(slow), fast_state)
            stay = lambda: (new, zero_updates(shapes_if_stored(moving)), fast_state)
        result, moved, fast_state = filter_cond(due, sync, stay)
        if state.slow is None:
            result, moved = LookaheadParams(result, moved), None
        elif not call.is_step:
            moved = add_updates(slow, moved)
        return result, LookaheadState(fast_state, count, moved)

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the slow weights.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. For
            [`eqopt.LookaheadParams`][], the result has the slow parameters. The
            evaluation parameters of `inner` are ignored: the outermost average counts.
        """
        fast, slow = self._split(state, params)
        slow = load(slow)
        here = match_params("slow", parameters(slow), fast)
        return eqx.combine(rounded_like(parameters(slow), here), slow, fast)

    def _split(self, state, params):
        """The fast and the slow parameters, wherever they are."""
        check_state(self, state)
        is_pair = isinstance(params, LookaheadParams)
        if is_pair == (state.slow is not None):
            kinds = ("plain parameters", "LookaheadParams")
            raise InputError(
                f"`params` is {kinds[is_pair]}, but `init` got {kinds[not is_pair]}."
            )
        return (params.fast, params.slow) if is_pair else (params, state.slow)

    def _moved(self, updates, fast, slow, fast_state):
        """A synchronization: the updates of the fast and the slow parameters."""
        reads, step_size = {"p": fast}, self.slow_step_size
        updates, move = leafwise(
            synchronize, updates, slow, reads=reads, slow_step_size=step_size
        )
        # Without an update, this still has the slow parameter, not a move.
        move = restrict(move, updates, "state.slow")
        moved = restrict(fast, parameters(slow), like_name="state.slow")
        fast_state = self._restart(add_updates(slow, move), moved, fast_state)
        return updates, move, fast_state

    def _synchronize(self, grads, fast, slow, fast_state):
        """A synchronization: the fast and the slow parameters after it."""
        step_size: Any = self.slow_step_size
        # Without frozen leaves.
        moved = restrict(fast, grads)
        new = incremental_update(load(moved), load(slow), step_size)
        # New buffers, to be donated.
        rounded = rounded_like(parameters(restrict(new, grads)), moved)
        here = store_like(moved, copy(rounded))
        fast = eqx.combine(here, fast, is_leaf=is_leaf)
        kept = restrict(fast, parameters(slow), like_name="state.slow")
        return fast, store_like(slow, new), self._restart(new, kept, fast_state)

    def _restart(self, slow, fast, fast_state):
        # The slow parameters, because the fast ones may be a whole model, of which `init`
        # got only a part.
        if not self.reset_state:
            return fast_state
        start = eqx.combine(rounded_like(parameters(slow), fast), slow)
        return restart(self.inner, fast_state, start)


@equation(elementwise=True)
def synchronize(g, slow, p, *, slow_step_size):
    distance = p + g - slow
    return g - (1 - slow_step_size) * distance, slow_step_size * distance


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
    _needs_params = True

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

    def handle(self, call: Call, state: OuterNesterovState) -> tuple[Any, State]:
        check_kept("slow", state.slow, call.updates)
        result, inner_state = call.run(self.inner, state.inner_state)
        due, count = count_step(state.steps_since_sync, self.period)
        result, slow, trace = filter_cond(
            due,
            lambda: self._synchronize(call, result, state.slow, state.trace),
            lambda: (result, state.slow, state.trace),
        )
        return result, OuterNesterovState(inner_state, count, slow, trace)

    def _synchronize(self, call, result, slow, trace) -> tuple[Any, Params, Params]:
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
