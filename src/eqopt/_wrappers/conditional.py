"""Transforming in some steps only."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._apply import apply_updates
from .._checks import check_state
from .._control import filter_cond
from .._transformation import AbstractTransformation
from .._types import Params, State, Updates
from ..numerics import safe_increment
from ..tree import zeros_like


class ConditionallyTransformState(eqx.Module):
    """The state of [`eqopt.ConditionallyTransform`][].

    **Attributes:**

    - `inner_state`: that of the inner transformation.
    - `step`: the calls so far, a 0-d int32 array.
    """

    inner_state: State
    step: Int[Array, ""]


class ConditionallyTransform(AbstractTransformation):
    """Transforms in some steps; in the others, updates pass unchanged.

    The inner state stands still where the condition does not hold. For zero updates in
    these steps, see [`eqopt.ConditionallyMask`][].

    !!! example

        ```python
        late = lambda step: step >= 1000
        opt = eqopt.Chain(
            eqopt.ConditionallyTransform(eqopt.ClipByGlobalNorm(1.0), late),
            eqopt.AdamW(1e-3),
        )
        ```

    **Arguments:**

    - `inner`: the transformation.
    - `should_transform_fn`: a function of the number of calls so far (0 in the first one)
        that gives a bool, or a 0-d array of one.
    - `forward_extra_args`: whether it also gets the extra arguments of `update`, by name.
    """

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params: Params) -> ConditionallyTransformState:
        return ConditionallyTransformState(
            self.inner.init(params), jnp.zeros((), jnp.int32)
        )

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ConditionallyTransformState]:
        act = lambda s: self.inner.update(updates, s, params, **extra)
        return _choose(_is_due(self, state, extra), state, act, lambda: updates)

    def step(
        self, grads: Updates, state: State, params: Params, **extra: Any
    ) -> tuple[Params, ConditionallyTransformState]:
        due = _is_due(self, state, extra)
        # Two branches, one after the other: where both of a branch's sides change the
        # parameters, XLA on a CPU copies them.
        passed = filter_cond(~due, lambda: apply_updates(params, grads), lambda: params)
        act = lambda s: self.inner.step(grads, s, passed, **extra)
        return _choose(due, state, act, lambda: passed)

    def eval_params(self, state: State, params: Params) -> Params:
        check_state(self, state)
        return self.inner.eval_params(state.inner_state, params)


class ConditionallyMaskState(eqx.Module):
    """The state of [`eqopt.ConditionallyMask`][].

    **Attributes:**

    - `step`: the calls so far, a 0-d int32 array.
    - `inner_state`: that of the inner transformation.
    """

    step: Int[Array, ""]
    inner_state: State


class ConditionallyMask(AbstractTransformation):
    """Transforms in some steps; in the others, updates are zero.

    Nothing moves where the condition does not hold: neither the inner state nor, with
    `step`, any memory. To pass the updates on in these steps, see
    [`eqopt.ConditionallyTransform`][].

    !!! example

        ```python
        opt = eqopt.ConditionallyMask(eqopt.AdamW(1e-3), lambda step: step % 2 == 0)
        ```

    **Arguments:** as for [`eqopt.ConditionallyTransform`][].
    """

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params: Params) -> ConditionallyMaskState:
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ConditionallyMaskState]:
        act = lambda s: self.inner.update(updates, s, params, **extra)
        return _choose(
            _is_due(self, state, extra), state, act, lambda: zeros_like(updates)
        )

    def step(
        self, grads: Updates, state: State, params: Params, **extra: Any
    ) -> tuple[Params, ConditionallyMaskState]:
        act = lambda s: self.inner.step(grads, s, params, **extra)
        return _choose(_is_due(self, state, extra), state, act, lambda: params)

    def eval_params(self, state: State, params: Params) -> Params:
        check_state(self, state)
        return self.inner.eval_params(state.inner_state, params)


_S = TypeVar("_S", ConditionallyTransformState, ConditionallyMaskState)


def _is_due(
    wrapper: ConditionallyTransform | ConditionallyMask,
    state: State,
    extra: dict[str, Any],
) -> Bool[Array, ""]:
    check_state(wrapper, state)
    forwarded = extra if wrapper.forward_extra_args else {}
    condition = wrapper.should_transform_fn(state.step, **forwarded)
    if jnp.shape(condition) or not jnp.issubdtype(jnp.result_type(condition), bool):
        raise ValueError(
            f"{type(wrapper).__name__}: `should_transform_fn` must give one bool, but "
            f"gave {condition!r}."
        )
    return jnp.asarray(condition)


def _choose(
    due: Bool[Array, ""],
    state: _S,
    act: Callable[[State], tuple[Any, State]],
    otherwise: Callable[[], Any],
) -> tuple[Any, _S]:
    result, inner_state = filter_cond(
        due,
        lambda: act(state.inner_state),
        lambda: (otherwise(), state.inner_state),
    )
    step = safe_increment(state.step)
    return result, type(state)(inner_state=inner_state, step=step)
