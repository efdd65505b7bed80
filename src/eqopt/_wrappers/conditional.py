"""Transforms the updates only in some steps."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._arguments.extra import check_flag
from .._core import AbstractTransformation, AbstractWrapper, Call
from .._trees.control import filter_cond
from .._types import State
from ..numerics._numerics import safe_increment


class ConditionallyTransformState(eqx.Module):
    """The state of [`eqopt.ConditionallyTransform`][].

    **Attributes:**

    - `inner_state`: the state of the inner transformation.
    - `step`: the number of calls so far, a 0-d int32 array.
    """

    inner_state: State
    step: Int[Array, ""]


class ConditionallyTransform(AbstractWrapper):
    """Transforms the updates in some steps, and passes them on unchanged in all others.

    If the condition is false, the inner state does not change. For zero updates in
    these steps, use [`eqopt.ConditionallyMask`][].

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
    - `should_transform_fn`: a function of the number of calls so far (0 in the first
        call) that returns a bool or a 0-d bool array.
    - `forward_extra_args`: whether `should_transform_fn` also gets the extra arguments
        of `update`, by name. Defaults to `False`.
    """

    _moves_params = True

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params) -> ConditionallyTransformState:
        return ConditionallyTransformState(
            self.inner.init(params), jnp.zeros((), jnp.int32)
        )

    def handle(self, call: Call, state: ConditionallyTransformState):
        due = _is_due(self, call, state)
        if call.is_step:
            # Two conditionals in sequence: if both sides of one changed the parameters,
            # XLA on a CPU would copy them.
            passed = filter_cond(~due, call.unchanged, call.nothing)
            call = call._replace(params=passed)
        otherwise = call.nothing if call.is_step else call.unchanged
        result, inner_state = call.run_if(due, self.inner, state.inner_state, otherwise)
        step = safe_increment(state.step)
        return result, ConditionallyTransformState(inner_state, step)


class ConditionallyMaskState(eqx.Module):
    """The state of [`eqopt.ConditionallyMask`][].

    **Attributes:**

    - `step`: the number of calls so far, a 0-d int32 array.
    - `inner_state`: the state of the inner transformation.
    """

    step: Int[Array, ""]
    inner_state: State


class ConditionallyMask(AbstractWrapper):
    """Transforms the updates in some steps, and makes them zero in all others.

    If the condition is false, the inner state does not change, and `step` moves no
    memory. To pass the updates on in these steps, use
    [`eqopt.ConditionallyTransform`][].

    !!! example

        ```python
        opt = eqopt.ConditionallyMask(eqopt.AdamW(1e-3), lambda step: step % 2 == 0)
        ```

    **Arguments:**

    - `inner`: the transformation.
    - `should_transform_fn`: a function of the number of calls so far (0 in the first
        call) that returns a bool or a 0-d bool array.
    - `forward_extra_args`: whether `should_transform_fn` also gets the extra arguments
        of `update`, by name. Defaults to `False`.
    """

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params) -> ConditionallyMaskState:
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def handle(self, call: Call, state: ConditionallyMaskState):
        due = _is_due(self, call, state)
        result, inner_state = call.run_if(due, self.inner, state.inner_state)
        return result, ConditionallyMaskState(safe_increment(state.step), inner_state)


def _is_due(wrapper: ConditionallyTransform | ConditionallyMask, call, state):
    forwarded = call.extra if wrapper.forward_extra_args else {}
    due = wrapper.should_transform_fn(state.step, **forwarded)
    return check_flag(wrapper, "should_transform_fn", due)
