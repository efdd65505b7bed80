"""Wrappers: they hold another transformation, and define only the changes."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._arguments.extra import required_params, without_norm
from .._trees.control import filter_cond
from .._trees.leaves import restrict, same_leaves
from .._trees.states import check_state
from .._trees.stored import on_arrays, shapes_if_stored
from .._types import Model, Params, SameState, State, Updates
from ..tree._like import zero_updates
from .leafwise import add_updates, rounded_like, widened
from .transformation import AbstractTransformation


class Call(NamedTuple):
    """A call of `update` or `step`, to be passed on to other transformations.

    The *result* of a call is what it returns in addition to the state: the updates for
    `update`, the parameters for `step`. `call._replace(updates=...)` is the same call
    with other updates, and so on.

    **Attributes:**

    - `updates`, `params`, `extra`: the arguments of the call, as in
        [`eqopt.AbstractTransformation.update`][].
    - `is_step`: whether it is a call of `step`.
    - `gradients`: the updates whose norm is the extra argument `grad_norm`, if that is
        given. The norm is not passed on with other updates.
    """

    updates: Updates
    params: Params | None
    extra: Mapping[str, Any]
    is_step: bool
    gradients: Updates = None

    def run(self, inner: AbstractTransformation, state: State) -> tuple[Any, State]:
        """Calls another transformation with the same arguments.

        **Arguments:**

        - `inner`: the transformation.
        - `state`: its state.

        **Returns:**

        The result, and the new state of `inner`. Without any update, `inner` does not
        run, so its counts are of steps in which something was trained.
        """
        if not jtu.tree_leaves(self.updates):
            return self.nothing(), state
        extra = keep_norm(self.extra, self.updates, self.gradients)
        method = inner.step if self.is_step else inner.update
        return method(self.updates, state, self.params, **extra)

    def run_if(
        self,
        condition: Any,
        inner: AbstractTransformation,
        state: State,
        otherwise: Callable[[], Any] | None = None,
    ) -> tuple[Any, State]:
        """Makes this call, or skips it without moving any memory.

        **Arguments:**

        - `condition`: whether to make the call, a bool or a 0-d bool array.
        - `inner`: the transformation.
        - `state`: its state.
        - `otherwise`: a function that returns the result of a skipped call. Defaults to
            `nothing`.

        **Returns:**

        The result, and the new state of `inner`. If the call is skipped, the result of
        `otherwise`, and `state` unchanged.
        """
        skip = lambda: ((otherwise or self.nothing)(), state)
        return filter_cond(condition, lambda: self.run(inner, state), skip)

    def nothing(self) -> Any:
        """The result that leaves the parameters unchanged."""
        if self.is_step:
            return self.params
        if self.params is None:
            return zero_updates(self.updates)
        # Gradients of examples have one more axis, but the updates have not.
        params = shapes_if_stored(restrict(self.params, self.updates))
        return jax.tree.map(_zero_update, self.updates, params)

    def unchanged(self) -> Any:
        """The result of passing the updates on unchanged."""
        if self.is_step:
            return add_updates(self.params, self.updates)
        return self.updates


def keep_norm(
    extra: Mapping[str, Any], updates: Updates, gradients: Updates
) -> Mapping[str, Any]:
    """Returns `extra` for `updates`; `grad_norm` stays if they are the `gradients`."""
    if "grad_norm" not in extra or same_leaves(updates, gradients):
        return extra
    return without_norm(extra)


def as_update(call: Call) -> Call:
    """The call of `update` in at least float32, for a wrapper that needs the updates."""
    updates = widened(call.updates)
    are_gradients = same_leaves(call.updates, call.gradients)
    gradients = updates if are_gradients else call.gradients
    return call._replace(updates=updates, gradients=gradients, is_step=False)


def result_of(call: Call, updates: Updates) -> Any:
    """The result of a call whose new updates, not yet rounded, are these."""
    if call.is_step:
        return add_updates(call.params, updates)
    return rounded_like(updates, call.updates)


def _zero_update(g: Any, p: Any) -> Any:
    like = p if g.shape[1:] == p.shape else g
    return jnp.zeros_like(like, dtype=g.dtype)


class AbstractComposite(AbstractTransformation):
    """A transformation that holds any number of others and calls them.

    Subclass it and implement `init` and `handle`; `update` and `step` follow. With one
    inner transformation, subclass [`eqopt.AbstractWrapper`][] instead.
    """

    _loads = "nothing"
    # Whether `update` needs the parameters, too.
    _needs_params: ClassVar[bool] = False

    @abc.abstractmethod
    def handle(self, call: Call, state: State) -> tuple[Any, State]:
        """Handles a call of `update` or `step`.

        **Arguments:**

        - `call`: the call.
        - `state`: as in `update`; it is of the type that `init` returns.

        **Returns:**

        The result of the call, and the new state.
        """

    def update(
        self,
        updates: Updates,
        state: SameState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SameState]:
        return self._handled(Call(updates, params, extra, False, updates), state)

    def step(
        self, grads: Updates, state: SameState, params: Model, **extra: Any
    ) -> tuple[Model, SameState]:
        params, state = self._handled(Call(grads, params, extra, True, grads), state)
        if self._stores_in_turn:
            state = self._in_turn(params, state, grads)
        return params, state

    def _handled(self, call: Call, state: State) -> tuple[Any, State]:
        if call.is_step or self._needs_params:
            required_params(call.params)
        check_state(self, state)
        if self._loads == "nothing":
            return self.handle(call, state)
        run = lambda state, params: self.handle(call._replace(params=params), state)
        if self._loads == "all":
            return on_arrays(run, state, call.params, call.is_step)
        of_params = lambda _, params: run(state, params)
        return on_arrays(of_params, None, call.params, call.is_step)


class AbstractWrapper(AbstractComposite):
    """A transformation around another one, its field `inner`.

    Subclass it and implement `init` and `handle`; `update` and `step` follow.
    `eval_params` calls the method of `inner`, if the state has the state of `inner` in
    its field `inner_state`. Implement `eval_params` to evaluate with other parameters.

    !!! example

        ```python
        class EverySecondState(eqx.Module):
            is_due: Array
            inner_state: PyTree


        class EverySecond(eqopt.AbstractWrapper):
            inner: eqopt.AbstractTransformation

            def init(self, params):
                return EverySecondState(jnp.array(True), self.inner.init(params))

            def handle(self, call, state):
                result, inner_state = call.run_if(
                    state.is_due, self.inner, state.inner_state
                )
                return result, EverySecondState(~state.is_due, inner_state)
        ```
    """

    inner: eqx.AbstractVar[AbstractTransformation]

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        return self.inner.eval_params(state.inner_state, params)
