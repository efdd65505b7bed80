"""Transforming in some steps only."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._control import filter_cond
from .._transformation import AbstractTransformation
from .._types import Params, State
from .._wrapper import AbstractWrapper, Call
from ..numerics import safe_increment


class ConditionallyTransformState(eqx.Module):
    """The state of [`eqopt.ConditionallyTransform`][].

    **Attributes:**

    - `inner_state`: the state of the inner transformation.
    - `step`: the calls so far, a 0-d int32 array.
    """

    inner_state: State
    step: Int[Array, ""]


class ConditionallyTransform(AbstractWrapper):
    """Transforms the updates in some steps; in the others, they pass unchanged.

    If the condition does not hold, the inner state does not change. For zero updates in
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
    - `should_transform_fn`: a function of the number of calls so far (0 in the first
        one) that returns a bool, or a 0-d array of one.
    - `forward_extra_args`: whether it also gets the extra arguments of `update`, by name.
    """

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params: Params) -> ConditionallyTransformState:
        return ConditionallyTransformState(
            self.inner.init(params), jnp.zeros((), jnp.int32)
        )

    def handle(
        self, call: Call, state: ConditionallyTransformState
    ) -> tuple[Any, ConditionallyTransformState]:
        due = _is_due(self, call, state)
        if call.is_step:
            # Two branches, one after the other: where both of a branch's sides change
            # the parameters, XLA on a CPU copies them.
            passed = filter_cond(~due, call.unchanged, call.nothing)
            call = call._replace(params=passed)
        otherwise = call.nothing if call.is_step else call.unchanged
        result, inner_state = call.run_if(due, self.inner, state.inner_state, otherwise)
        step = safe_increment(state.step)
        return result, ConditionallyTransformState(inner_state, step)


class ConditionallyMaskState(eqx.Module):
    """The state of [`eqopt.ConditionallyMask`][].

    **Attributes:**

    - `step`: the calls so far, a 0-d int32 array.
    - `inner_state`: the state of the inner transformation.
    """

    step: Int[Array, ""]
    inner_state: State


class ConditionallyMask(AbstractWrapper):
    """Transforms the updates in some steps; in the others, they are zero.

    If the condition does not hold, nothing moves: neither the inner state nor, with
    `step`, any memory. To pass the updates on in these steps, see
    [`eqopt.ConditionallyTransform`][].

    !!! example

        ```python
        opt = eqopt.ConditionallyMask(eqopt.AdamW(1e-3), lambda step: step % 2 == 0)
        ```

    **Arguments:**

    - All: see [`eqopt.ConditionallyTransform`][].
    """

    inner: AbstractTransformation
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    def init(self, params: Params) -> ConditionallyMaskState:
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def handle(
        self, call: Call, state: ConditionallyMaskState
    ) -> tuple[Any, ConditionallyMaskState]:
        due = _is_due(self, call, state)
        result, inner_state = call.run_if(due, self.inner, state.inner_state)
        return result, ConditionallyMaskState(safe_increment(state.step), inner_state)


def _is_due(
    wrapper: ConditionallyTransform | ConditionallyMask, call: Call, state: State
) -> Bool[Array, ""]:
    forwarded = call.extra if wrapper.forward_extra_args else {}
    condition = wrapper.should_transform_fn(state.step, **forwarded)
    if jnp.shape(condition) or not jnp.issubdtype(jnp.result_type(condition), bool):
        raise ValueError(
            f"{type(wrapper).__name__}: `should_transform_fn` must give one bool, but "
            f"gave {condition!r}."
        )
    return jnp.asarray(condition)
