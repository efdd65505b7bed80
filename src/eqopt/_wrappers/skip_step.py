"""Skips harmful steps and mini-steps, or transforms the updates only in some steps."""

import abc
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments.checks import check_no_schedule
from .._arguments.construction import Module
from .._arguments.extra import check_number, given_norm
from .._arguments.fields import static_choice
from .._core import AbstractTransformation, AbstractWrapper, Call, global_norm
from .._errors import InputError
from .._transforms.clip import is_known, mark_present, remember
from .._trees.control import filter_cond
from .._trees.leaves import flatten_updates, parameters
from .._types import (
    AtLeast,
    CountOrZero,
    IntegerLike,
    Params,
    Scalar,
    State,
    Updates,
    ZeroOrMore,
)
from ..numerics._numerics import at_least_float32, safe_increment
from ..tree import norm


class ApplyIfFiniteState(eqx.Module):
    """The counts of skipped steps.

    **Attributes:**

    - `notfinite_count`: the number of consecutive gradients, up to the last one, that
        were not finite; a 0-d int32 array. It does not exceed
        `max_consecutive_errors + 1`. It reaches this value when a step is applied
        although its gradients are not finite.
    - `last_finite`: whether the last gradients were finite, a 0-d bool array.
    - `total_notfinite`: the number of gradients that were not finite, a 0-d int32
        array.
    - `inner_state`: the inner state.
    """

    notfinite_count: Int[Array, ""]
    last_finite: Bool[Array, ""]
    total_notfinite: Int[Array, ""]
    inner_state: State


class ApplyIfFinite(AbstractWrapper):
    """Skips every step with a NaN or an infinity in its gradients.

    In a skipped step, the updates are zero and the inner state stays unchanged. After
    `max_consecutive_errors` skipped steps in a row, it gives up and applies all
    gradients until they are finite again. If `step` gets the extra argument
    `grad_norm` and it is finite, the gradients are not read.

    **Arguments:**

    - `inner`: the transformation.
    - `max_consecutive_errors`: the largest number of consecutive steps to skip, an
        integer of at least 0.

    **Raises:**

    A `ValueError` if `max_consecutive_errors` is negative or not an integer.
    """

    inner: AbstractTransformation
    max_consecutive_errors: CountOrZero

    def init(self, params: Params) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(
            notfinite_count=jnp.zeros((), jnp.int32),
            last_finite=jnp.ones((), bool),
            total_notfinite=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
        )

    def handle(self, call: Call, state: ApplyIfFiniteState) -> tuple[Any, State]:
        finite = are_finite(call)
        limit = jnp.asarray(self.max_consecutive_errors, jnp.int32)
        last = jnp.minimum(state.notfinite_count, limit)
        in_a_row = jnp.where(finite, 0, safe_increment(last)).astype(jnp.int32)
        total = state.total_notfinite
        applies = finite | (in_a_row > limit)
        result, inner_state = call.run_if(applies, self.inner, state.inner_state)
        return result, ApplyIfFiniteState(
            notfinite_count=in_a_row,
            last_finite=finite,
            total_notfinite=jnp.where(finite, total, safe_increment(total)),
            inner_state=inner_state,
        )


def are_finite(call: Call) -> Bool[Array, ""]:
    """Whether all updates of a call are finite, by `grad_norm` if that is enough."""
    length = given_norm(call.extra)
    if length is None:
        return all_finite(call.updates)
    # The norm of large gradients overflows, although they are finite.
    return filter_cond(
        ~jnp.isfinite(length),
        lambda: all_finite(call.updates),
        lambda: jnp.ones((), bool),
    )


def all_finite(updates: Updates) -> Bool[Array, ""]:
    leaves = [leaf for leaf in flatten_updates(updates)[0] if leaf is not None]
    if not leaves:
        return jnp.ones((), bool)
    return jnp.all(jnp.stack([_is_finite(leaf) for leaf in leaves]))


@jax.jit
def _is_finite(x):
    # A value that is not finite, minus itself, is NaN, and so is any sum that contains
    # it. On a CPU, this is three times faster than `all(isfinite(x))`, because a
    # reduction of bools is slow. Unlike `sum(x * 0)`, it creates no temporary array.
    return jnp.isfinite(jnp.sum(x - x))


class AbstractSkipRule(Module):
    """A rule that selects the steps that [`eqopt.SkipStep`][] skips.

    Subclass it and implement `init` and `__call__`. If the rule needs no memory, a
    function of the loss and the norm is enough.
    """

    @abc.abstractmethod
    def init(self) -> State:
        """The memory of the rule before the first step: any tree of arrays."""

    @abc.abstractmethod
    def __call__(
        self, value: Scalar | None, norm: Scalar, state: State
    ) -> tuple[Bool[Array, ""], State]:
        """Whether to skip a step, and the memory after it.

        **Arguments:**

        - `value`: the loss; `None` if the extra argument `value` is not given.
        - `norm`: the global norm of the gradients.
        - `state`: the memory that `init` or the last call returned.
        """


class SigmaRuleState(eqx.Module):
    """Ring buffers of the last losses and norms.

    **Attributes:**

    - `values`: the losses, a float32 array of shape `(window,)`.
    - `value_count`: the number of losses so far, a 0-d int32 array. The next one is
        stored at index `value_count % window`.
    - `norms`, `norm_count`: the same for the norms of the gradients.
    """

    values: Float[Array, " window"]
    value_count: Int[Array, ""]
    norms: Float[Array, " window"]
    norm_count: Int[Array, ""]


class SigmaRule(AbstractSkipRule):
    r"""Skips steps whose loss or gradient norm is far above the previous ones.

    A step is skipped if, for the loss or the norm $x_t$,

    $$x_t > m + \sigma s$$

    where $m$ and $s$ are the mean and the standard deviation (with $n - 1$ in the
    denominator) of the last $n \le$ `window` values. A step with a NaN or infinite loss
    or norm is always skipped, and the value is not remembered.

    Finite values are remembered even if their step is skipped. So a lasting rise, for
    example after a change of the data or of the loss, is accepted after a few steps:
    $k$ values of a new level among $n$ count as large only while
    $(n - k)\,(n - 1) / (n k) > \sigma^2$. With the defaults, these are the first 4
    steps. If the values were not remembered, all later steps could be skipped. The
    price is that fewer values count as large until such a value has left the window.

    Losses are used if you pass `value` to `step`. The comparison needs no absolute
    scale: multiplying all losses and norms by a number changes nothing.

    **Arguments:**

    - `window`: the number of previous values to compare with, an integer of at least 2;
        static. Defaults to 128.
    - `sigma`: $\sigma \ge 0$. Defaults to 6.0.
    - `min_history`: the number of losses or norms that must be known before one can
        count as large, an integer of at least 2. Defaults to half of `window`, at
        least 2.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{olmo2024furious,
            author = {{Team OLMo} and Walsh, Pete and Soldaini, Luca and Groeneveld, Dirk
                      and Lo, Kyle and others},
            title = {2 {OLMo} 2 Furious},
            journal = {arXiv preprint arXiv:2501.00656},
            year = {2024},
        }
        ```
    """

    window: Annotated[int, AtLeast(2)] = static_choice(static=True, default=128)
    sigma: ZeroOrMore = 6.0
    min_history: Annotated[IntegerLike, AtLeast(2)] | None = None

    def init(self) -> SigmaRuleState:
        check_no_schedule(self)
        zeros = lambda: jnp.zeros(self.window, jnp.float32)  # each in its own buffer
        zero = lambda: jnp.zeros((), jnp.int32)
        return SigmaRuleState(zeros(), zero(), zeros(), zero())

    def __call__(
        self, value: Scalar | None, norm: Scalar, state: State
    ) -> tuple[Bool[Array, ""], SigmaRuleState]:
        skip, *seen = self._judge(norm, state.norms, state.norm_count)
        values = state.values, state.value_count
        if value is not None:
            is_large, *values = self._judge(value, *values)
            skip = skip | is_large
        return skip, SigmaRuleState(*values, *seen)

    def _judge(self, x: Array, history: Array, count: Array) -> tuple[Array, ...]:
        """Whether `x` should be skipped, and the history that includes it."""
        x = x.astype(jnp.float32)
        is_there, n = mark_present(count, self.window)
        # Relative to `x`, not to zero: for equal values, the differences are exactly
        # zero, so a rounded mean cannot make a value count as large.
        distances = jnp.where(is_there, x / 2 - history / 2, 0)
        # Divided by the largest, so that no square overflows.
        largest = jnp.max(jnp.abs(distances))
        distances = distances / jnp.where(largest > 0, largest, 1)
        mean = jnp.sum(distances) / n
        spread = jnp.sum(jnp.where(is_there, (distances - mean) ** 2, 0)) / (n - 1)
        sigma: Any = jnp.asarray(self.sigma).astype(jnp.float32)
        is_large = mean > sigma * jnp.sqrt(spread)
        skip = ~jnp.isfinite(x) | (is_large & is_known(self, count))
        return skip, *remember(x, history, count)


class SkipNotFinite(Module):
    """Skips mini-steps with a NaN or an infinity in their gradients.

    Use it with [`eqopt.MultiSteps`][]. Its diagnostics, in the `skip_state` of
    `MultiSteps`, are a dictionary of

    - `should_skip`: whether the last mini-step was skipped, a 0-d bool array;
    - `num_not_finite`: the number of entries of its gradients that were not finite, a
        0-d int32 array.

    !!! example

        ```python
        opt = eqopt.MultiSteps(
            eqopt.AdamW(1e-3), 8, should_skip_update_fn=eqopt.SkipNotFinite()
        )
        ```
    """

    def __call__(
        self, updates: Updates, gradient_step: Any, params: Params | None
    ) -> tuple[Bool[Array, ""], dict[str, Array]]:
        leaves = map(jnp.asarray, jax.tree.leaves(parameters(updates)))
        count = sum(map(_count_not_finite, leaves), start=jnp.zeros((), jnp.int32))
        skip = count > 0
        return skip, {"should_skip": skip, "num_not_finite": count}


def _count_not_finite(x: Array) -> Array:
    # On a CPU, counting takes 2.5 times as long as checking, and an array of the size
    # of the leaf. Few leaves need it, and they share that memory in turn.
    return filter_cond(
        ~all_finite(x),
        lambda: jnp.sum(~jnp.isfinite(x), dtype=jnp.int32),
        lambda: jnp.zeros((), jnp.int32),
    )


class SkipLargeUpdates(Module):
    r"""Skips mini-steps with large gradients: $\|g\|^2 \ge$ a bound.

    Use it with [`eqopt.MultiSteps`][]. Gradients with a NaN norm count as large. The
    diagnostics, in the `skip_state` of `MultiSteps`, are a dictionary of

    - `should_skip`: whether the last mini-step was skipped, a 0-d bool array;
    - `norm_squared`: $\|g\|^2$ over all leaves, a 0-d array, at least float32.

    !!! example

        ```python
        opt = eqopt.MultiSteps(
            eqopt.AdamW(1e-3), 8, should_skip_update_fn=eqopt.SkipLargeUpdates(100.0)
        )
        ```

    **Arguments:**

    - `max_squared_norm`: the bound on $\|g\|^2$, at least 0.

    **Raises:**

    A `ValueError` if `max_squared_norm` is negative.
    """

    max_squared_norm: ZeroOrMore

    def __call__(
        self, updates: Updates, gradient_step: Any, params: Params | None
    ) -> tuple[Bool[Array, ""], dict[str, Array]]:
        check_no_schedule(self)
        norm_squared = norm(updates, squared=True)
        bound = jnp.asarray(self.max_squared_norm).astype(norm_squared.dtype)
        # Not `norm_squared >= bound`, which is false for NaN.
        skip = ~(norm_squared < bound)
        return skip, {"should_skip": skip, "norm_squared": norm_squared}


class SkipStepState(eqx.Module):
    """The counts of skipped steps, and the state of the rule.

    **Attributes:**

    - `skipped_last`: whether the last step was skipped, a 0-d bool array.
    - `total_skipped`: the number of skipped steps, a 0-d int32 array.
    - `rule_state`: the memory of the rule; `None` if it is a function.
    - `inner_state`: the inner state.
    """

    skipped_last: Bool[Array, ""]
    total_skipped: Int[Array, ""]
    rule_state: State
    inner_state: State


class SkipStep(AbstractWrapper):
    r"""Skips every step that a rule selects.

    The rule gets the global norm of the gradients, and the loss if you pass `value` to
    `step` or `update`. If you pass `grad_norm`, that is the norm, and nothing is
    reduced. A skipped step changes only the counters and the memory of the
    rule: parameters and inner state stay unchanged. With `step`, no memory is moved.

    !!! example

        ```python
        opt = eqopt.SkipStep(eqopt.AdamW(1e-3), eqopt.SigmaRule())
        ...
        model, state = opt.step(grads, state, model, value=loss)
        ```

    Or use a function, which must handle NaNs itself:

    !!! example

        ```python
        opt = eqopt.SkipStep(eqopt.AdamW(1e-3), lambda value, norm: ~(norm < 10.0))
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `rule`: an [`eqopt.AbstractSkipRule`][], such as [`eqopt.SigmaRule`][], or a
        function. It gets the loss (`None` if `value` is not given) and the norm, both
        0-d arrays of at least float32, and returns whether to skip the step, as a 0-d
        bool array.

    **Raises:**

    In `update`, a `ValueError` if `value` or `grad_norm` is not one real number.
    """

    inner: AbstractTransformation
    rule: Callable[..., Any]

    def init(self, params: Params) -> SkipStepState:
        return SkipStepState(
            skipped_last=jnp.zeros((), bool),
            total_skipped=jnp.zeros((), jnp.int32),
            rule_state=(
                self.rule.init() if isinstance(self.rule, AbstractSkipRule) else None
            ),
            inner_state=self.inner.init(params),
        )

    def handle(self, call: Call, state: SkipStepState) -> tuple[Any, State]:
        value = call.extra.get("value")
        if value is not None:
            check_number("value", value)
            value = at_least_float32(jnp.asarray(value))
        size = global_norm(call.updates, call.extra)
        if isinstance(self.rule, AbstractSkipRule):
            skip, rule_state = self.rule(value, size, state.rule_state)
        else:
            skip, rule_state = self.rule(value, size), None
        skip = check_flag("rule", skip)
        result, inner_state = call.run_if(~skip, self.inner, state.inner_state)
        total = state.total_skipped
        return result, SkipStepState(
            skipped_last=skip,
            total_skipped=jnp.where(skip, safe_increment(total), total),
            rule_state=rule_state,
            inner_state=inner_state,
        )


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

    def init(self, params: Params) -> ConditionallyTransformState:
        inner_state = self.inner.init(params)
        return ConditionallyTransformState(inner_state, jnp.zeros((), jnp.int32))

    def handle(
        self, call: Call, state: ConditionallyTransformState
    ) -> tuple[Any, State]:
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

    def init(self, params: Params) -> ConditionallyMaskState:
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def handle(self, call: Call, state: ConditionallyMaskState) -> tuple[Any, State]:
        due = _is_due(self, call, state)
        result, inner_state = call.run_if(due, self.inner, state.inner_state)
        return result, ConditionallyMaskState(safe_increment(state.step), inner_state)


def _is_due(wrapper: ConditionallyTransform | ConditionallyMask, call, state):
    forwarded = call.extra if wrapper.forward_extra_args else {}
    due = wrapper.should_transform_fn(state.step, **forwarded)
    return check_flag("should_transform_fn", due)


def check_flag(name: str, value: Any) -> Any:
    """Returns what the function `name` returned; raises unless it is a 0-d bool."""
    if np.shape(value) != () or jnp.result_type(value) != np.bool_:
        raise InputError(
            f"`{name}` must return a bool or a 0-d bool array, but returned {value!r}."
        )
    return jnp.asarray(value)
