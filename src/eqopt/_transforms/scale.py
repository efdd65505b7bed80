"""Multiplies updates by a number: fixed, scheduled, a learning rate, on a plateau."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_returned
from .._arguments.extra import check_number
from .._combinators.masked import zero
from .._core import (
    AbstractLeafwise,
    AbstractOptimizer,
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    equation,
)
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import is_none, parameters
from .._trees.masks import resolve
from .._trees.precision import compute_dtype
from .._trees.routes import Report
from .._trees.sharding import has_explicit_axes, is_in_shard_map
from .._types import (
    ClosedUnit,
    Count,
    CountOrZero,
    Hyperparameter,
    Leaf,
    OpenUnit,
    Params,
    PyTree,
    RealScalarLike,
    Recorded,
    Scalar,
    ScalarOrSchedule,
    Schedule,
    State,
    Updates,
    ZeroOrMore,
)
from ..numerics._numerics import as_float, safe_increment, wide_dtype
from ..schedules._plateau import AbstractPlateauState, after_one_more, no_losses_yet
from ..tree._arithmetic import check_broadcasts


@equation(elementwise=True)
def scale(g, *, step_size):
    return step_size * g


@equation(elementwise=True)
def same(g):
    return g


def at(owner: object, name: str, count: Int[Array, ""] | None) -> Any:
    """The hyperparameter `name` of `owner` after `count` steps.

    `count` is `None` if it was not a schedule when the state was made.
    """
    value: Any = getattr(owner, name)
    if callable(value) and count is None:
        raise InputError(
            f"`{name}` is a schedule, but the state was made for a number. Take it over: "
            "`state = eqopt.tree.migrate(opt, state, model)`."
        )
    return check_returned(name, value(count)) if callable(value) else value


class Identity(AbstractStateless):
    """Returns the updates unchanged."""

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(same)


class SetToZero(AbstractStateless):
    """Makes every update zero, even if it is not finite."""

    _freezes = True  # for `Partition`: it is no mistake if its group is empty

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(zero)


class Scale(AbstractStateless):
    r"""Multiplies the updates: $u = s\,g$.

    **Arguments:**

    - `step_size`: $s$, a number or a 0-d array. Its dtype does not change the dtype of
        the updates.
    """

    step_size: Hyperparameter

    def _route(self, report: Report, params: Params) -> None:
        report.multiply(params, self.step_size)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale)


@equation
def scale_leaf(g: Leaf, factor: Float[Array, "*factor"]) -> Leaf:
    return factor * g


class ScaleByTree(AbstractLeafwise):
    r"""Multiplies the update of each leaf by its own factor.

    Put it after an optimizer to give each parameter its own learning rate, relative to
    the common one.

    !!! example

        ```python
        factors = lambda m: eqx.tree_at(
            lambda m: m.encoder, jax.tree.map(lambda _: 1.0, m), 0.1
        )
        opt = eqopt.Chain(eqopt.AdamW(1e-3), eqopt.ScaleByTree(factors))
        ```

    **Arguments:**

    - `factors`: a tree of numbers and arrays with the structure of the parameters or a
        prefix of it, or a function of the parameters that returns one, such as
        [`eqopt.groups.layerwise_decay`][]. An array broadcasts against its parameter.
        `None` means 1.

    **Raises:**

    In `init` and `update`, a `ValueError` that names the key path if trees or shapes do
    not fit.
    """

    factors: PyTree | Callable[[Params], PyTree]

    def init(self, params: Params) -> None:
        self._spread(parameters(params), params)  # raises if they do not fit

    def _route(self, report: Report, params: Params) -> None:
        factors = resolve("factors", self.factors, params, params)
        report.multiply(params, factors)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_leaf, reads={"factor": lambda u: self._spread(u, params)})

    def _spread(self, updates: Updates, params: Params | None) -> PyTree:
        leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_none)
        factors = resolve("factors", self.factors, updates, params)
        for i, (factor, g) in enumerate(zip(factors, leaves, strict=True)):
            if g is None:
                factors[i] = None
                continue
            real = jnp.finfo(wide_dtype(g.dtype)).dtype
            check_broadcasts("factors", factor, updates, i, g.shape)
            factors[i] = jnp.asarray(1 if factor is None else factor, real)
        return treedef.unflatten(factors)


class ScaleByScheduleState(eqx.Module):
    """`count`: the steps taken so far, a 0-d int32 array."""

    count: Int[Array, ""]


class ScaleBySchedule(AbstractLeafwise):
    r"""Multiplies the updates by a schedule: $u_t = s(t)\,g_t$, $t = 0, 1, …$

    **Arguments:**

    - `schedule`: $s$, a schedule of [`eqopt.schedules`][] or any function of the number
        of steps taken so far (0 in the first step).
    """

    schedule: Schedule

    def init(self, params: Params) -> ScaleByScheduleState:
        return ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def leafwise(
        self, state: ScaleByScheduleState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        new = ScaleByScheduleState(count=safe_increment(state.count))
        return Leafwise(scale, new, {"step_size": at(self, "schedule", state.count)})


class ScaleByLearningRateState(eqx.Module):
    """The count, and the current learning rate.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `learning_rate`: the learning rate of the last step, a 0-d float32 array. Before
        the first step, the learning rate for it.
    """

    count: Int[Array, ""]
    learning_rate: Recorded


class ScaleByLearningRate(AbstractLeafwise):
    r"""Multiplies the updates by the negative learning rate: $u_t = -\eta_t\,g_t$.

    Put it at the end of an optimizer: it turns the updates from uphill to downhill.
    `eqopt.tree.get(state, "learning_rate")` returns the current learning rate.

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array, or a schedule: a schedule of
        [`eqopt.schedules`][] or any function of the number of steps taken so far (0 in
        the first step).
    - `flip_sign`: whether to multiply by $-\eta$ instead of $\eta$. Defaults to `True`.
    """

    _descends = True

    learning_rate: ScalarOrSchedule
    flip_sign: bool = True

    def _route(self, report: Report, params: Params) -> None:
        report.take("", params)

    def init(self, params: Params) -> ScaleByLearningRateState:
        count = jnp.zeros((), jnp.int32)
        rate = recorded(at(self, "learning_rate", count))
        return ScaleByLearningRateState(count, rate)

    def leafwise(
        self,
        state: ScaleByLearningRateState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        eta, state = take_rate(self, state)
        state = dataclasses.replace(state, count=safe_increment(state.count))
        step_size = negative(eta) if self.flip_sign else eta
        return Leafwise(scale, state, {"step_size": step_size})


def take_rate(owner: object, state: Any) -> tuple[Any, Any]:
    """The learning rate of this step, and the state that records it."""
    eta = at(owner, "learning_rate", state.count)
    rate = recorded(eta, state.learning_rate)
    return eta, dataclasses.replace(state, learning_rate=rate)


def negative(rate: Any) -> Any:
    """`-rate`, also for an unsigned integer, which has no negative."""
    dtype = getattr(rate, "dtype", np.dtype(float))
    is_unsigned = jnp.issubdtype(dtype, np.unsignedinteger)
    return -(as_float(rate) if is_unsigned else rate)


def has_learning_rate(transformation: AbstractTransformation) -> bool:
    """Whether it, or a part of it (a recipe, or `_descends`), goes downhill by itself."""

    def is_one(node):
        return isinstance(node, AbstractOptimizer) or getattr(node, "_descends", False)

    return any(map(is_one, jtu.tree_leaves(transformation, is_leaf=is_one)))


def recorded(value: Any, last: Array | None = None) -> Scalar:
    """The current value of a hyperparameter, for the state, in which it was `last`.

    It is a copy: the state must not share a buffer with the hyperparameter.
    """
    if last is None:
        return jnp.array(value, jnp.float32)
    new = jnp.array(value, last.dtype)
    # There, types say where arrays are, and both branches must agree about it.
    is_typed = has_explicit_axes(last) or is_in_shard_map()
    return new if is_typed or not is_traced(last) else _in_place(new, last)


@jax.jit
def _in_place(new: Array, last: Array) -> Array:
    """`new`; on a GPU, it depends on `last`, so that it takes the same buffer.

    Otherwise, a program for a GPU ends with a copy of a constant to a new buffer, for
    which the host needs more time than for many kernels: with such a copy, a step of
    Optax's AdamW takes 8.5 ms instead of 6.2 (300 arrays with up to 4096 elements, H200).
    """
    # No number is less than minus infinity, but XLA does not use this. With zero instead
    # of `last`, it would see that a new value of zero is a constant.
    selected = lambda new, last: jnp.where(last < -jnp.inf, last, new)
    return lax.platform_dependent(new, last, cuda=selected, default=lambda new, _: new)


class ReduceLROnPlateauState(AbstractPlateauState):
    """The scale, and the recent history of the loss.

    **Attributes:**

    - `scale`: the factor of the updates.
    - `best_value`: the smallest loss that counted as an improvement.
    - `plateau_count`: the number of consecutive losses without an improvement on it.
    - `cooldown_count`: the number of losses that will still not count after a
        reduction.
    - `count`: the number of values in `avg_value`.
    - `avg_value`: the mean of the values since the last complete loss.

    Counts are 0-d int32 arrays, the others 0-d arrays of at least float32.
    """


class ReduceLROnPlateau(AbstractLeafwise):
    r"""Scales updates down when the loss stops decreasing.

    A loss $l$ is an improvement on the best one so far, $b$, if

    $$l < b - (r\,|b| + a).$$

    After `patience` consecutive losses without an improvement, the scale is multiplied
    by `factor`. The following `cooldown` losses do not count. Put it after an
    optimizer:

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.Adam(1e-3), eqopt.ReduceLROnPlateau(patience=5))
        model, state = opt.step(grads, state, model, value=loss)
        eqopt.tree.get(state, "ReduceLROnPlateauState").scale
        ```

    `update` and `step` need the extra argument `value`, which is the loss. They use it
    in every step, not once per epoch: for the noisy losses of mini-batches, set an
    `accumulation_size`.

    `torch.optim.lr_scheduler.ReduceLROnPlateau` reduces one loss later: for its
    `patience=p`, use `p + 1` here.

    **Arguments:**

    - `factor`: the factor of a reduction, in $(0, 1)$. Defaults to 0.1.
    - `patience`: the number of losses without improvement before a reduction, an
        integer of at least 1. Defaults to 10.
    - `rtol`: $r \in [0, 1]$, the relative tolerance. Defaults to 0.0001.
    - `atol`: $a \ge 0$, the absolute tolerance. Defaults to 0.0.
    - `cooldown`: the number of losses after a reduction that do not count, an integer
        of at least 0. Defaults to 0.
    - `accumulation_size`: the number of values whose mean counts as one loss, an
        integer of at least 1. Defaults to 1.
    - `min_scale`: the smallest scale, in $[0, 1]$. Defaults to 0.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `value`
    is missing.
    """

    factor: OpenUnit = 0.1
    patience: Count = 10
    rtol: ClosedUnit = 1e-4
    atol: ZeroOrMore = 0.0
    cooldown: CountOrZero = 0
    accumulation_size: Count = 1
    min_scale: ClosedUnit = 0.0

    def init(self, params: Params) -> ReduceLROnPlateauState:
        dtype = compute_dtype(parameters(params))
        return ReduceLROnPlateauState(**no_losses_yet(dtype))

    def leafwise(
        self,
        state: State,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> Leafwise:
        check_number("value", value)
        new = ReduceLROnPlateauState(**after_one_more(self, state, value))
        return Leafwise(scale, new, {"step_size": new.scale})
