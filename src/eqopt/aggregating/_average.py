"""The protocol of aggregators, and means and variances over elements and calls."""

import abc
import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Inexact, Int

from .._core import AbstractTransformation, equation, leafwise
from .._transforms.privacy import batch_size
from .._trees.leaves import flatten_updates, restrict
from .._trees.states import check_state
from .._trees.stored import load
from .._types import Count, Nonnegative, Params, Scalar, State, StaticInteger, Updates
from .._wrappers.collecting import fill_missing
from ..numerics._numerics import abs_sq, at_least_float32
from ..tree import get_all_with_path
from ..tree._like import real_full_like, wide_zeros_like


class AbstractAggregator(AbstractTransformation):
    """A transformation that combines many updates into one.

    Its input has the gradients of several elements (such as examples) along additional
    axes, or comes from several calls. Its output is like the parameters. Put it first
    in an [`eqopt.Chain`][], or in an [`eqopt.aggregating.Process`][], which also passes
    on the other results of the aggregator.

    Subclass it and implement `init` and `aggregate`; `update` follows.

    An aggregator that needs several calls has a 0-d bool array `ready` in its state,
    which is true if its last output is the result. If it is false, `update` returns
    zeros, and a `Process` does not step.

    !!! example

        ```python
        class Median(eqopt.aggregating.AbstractAggregator):
            def init(self, params):
                return None

            def aggregate(self, updates, state, params=None, **extra):
                medians = jax.tree.map(lambda g: jnp.median(g, axis=0), updates)
                return medians, {}, state


        opt = eqopt.Chain(Median(), eqopt.Adam(1e-3))
        ```
    """

    _takes_examples = True

    @abc.abstractmethod
    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """The aggregated updates, further results, and the new state.

        **Arguments:**

        - `updates`: a tree like the parameters, with inexact arrays and `None`; the
            arrays may have additional axes.
        - `state`, `params`, `extra`: as in `update`.

        **Returns:**

        Updates with the structure and shapes of the parameters, also where only earlier
        calls had updates, possibly in a higher precision than `updates`, which are valid
        only if the new state is `ready`; a dictionary of extra arguments for the
        following transformations; and the new state.
        """

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        aggregated, _, state = self.aggregate(updates, state, params, **extra)
        ready = is_ready(state)
        if ready is not True:
            # Selected, not multiplied: values that are not ready may be NaN.
            aggregated = jax.tree.map(lambda u: jnp.where(ready, u, 0), aggregated)
        return rounded(restrict(aggregated, updates), updates), state


def is_ready(state: State) -> Bool[Array, ""] | bool:
    """Whether every `ready` in a state is true; `True` if there is none."""
    flags = [flag for _, flag in get_all_with_path(state, "ready", _is_flag)]
    return functools.reduce(jnp.logical_and, flags) if flags else True


def _is_flag(path: tuple, x: Any) -> bool:
    # A parameter may be named `ready`, too, and then so are its averages.
    is_bool_array = eqx.is_array(x) and x.shape == () and x.dtype == jnp.bool_
    return isinstance(x, bool) or is_bool_array


def rounded(aggregated: Updates, updates: Updates) -> Updates:
    """Rounds aggregated updates to the dtypes of the given updates that are there."""
    like = eqx.combine(updates, aggregated)
    return jax.tree.map(lambda u, g: u.astype(g.dtype), aggregated, like)


# The axes of the elements in per-element updates.
Axes: TypeAlias = StaticInteger | Sequence[StaticInteger]


def _hashable(axes: Axes | None) -> Any:
    """For a static field: Python integers, in a tuple if there are several."""
    if isinstance(axes, Sequence):
        return tuple(map(operator.index, axes))
    return None if axes is None else operator.index(axes)


class AveragePerElementUpdates(AbstractAggregator):
    r"""Takes the mean over the elements of each call.

    $$u = \frac{1}{B} \sum_{i=1}^{B} g_i$$

    Means are computed in at least float32.

    **Arguments:**

    - `per_elt_axis`: the axis along which the elements are, or a sequence of axes.
        Negative axes count from the end. Defaults to 0.

    **Raises:**

    In `update`, a `ValueError` that names the key path if updates have no such axes, or
    different numbers of elements.
    """

    per_elt_axis: Axes = eqx.field(static=True, default=0, converter=_hashable)

    def init(self, params: Params) -> None:
        return None

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], None]:
        check_state(self, state)
        means, _ = _element_means(self, updates, params)
        return means, {}, None


class AccumulateAvgUpdatesState(eqx.Module):
    """The mean so far.

    **Attributes:**

    - `micro_step`: the number of calls so far, a 0-d int32 array; 0 after the last one.
    - `ready`: whether the last call completed a mean, a 0-d bool array.
    - `sample_size`: the number of elements so far, a 0-d int32 array, which saturates.
    - `avg_grad`: the mean, a tree like the parameters in at least float32. (When it is
        `ready`, it stays until the next call overwrites it.)
    """

    micro_step: Int[Array, ""]
    ready: Bool[Array, ""]
    sample_size: Int[Array, ""]
    avg_grad: Updates


@equation(elementwise=True)
def accumulate(g, avg_grad, *, part, is_first):
    # Selected, not multiplied by zero, so that NaNs of the last mean disappear.
    old = jnp.where(is_first, 0, avg_grad)
    return g, old + (g - old) * part


class AccumulateAvgUpdates(AbstractAggregator):
    r"""Takes the mean of the updates of several calls.

    $$u_t = \begin{cases}
        \frac{1}{k} (g_{t-k+1} + \dots + g_t) & t = k, 2k, 3k, … \\
        0 & \text{otherwise.}
      \end{cases}$$

    In an [`eqopt.aggregating.Process`][], the optimizer does not step in the other
    calls; in a chain, it would step with zeros. If you only need accumulation, use
    [`eqopt.MultiSteps`][], which can also skip or weight mini-batches.

    An update that is `None` adds nothing to the mean. If it is the last one, the result
    of `update` has `None` there, too, but an [`eqopt.aggregating.Process`][] uses the
    mean in `step`.

    **Arguments:**

    - `accumulation_steps`: $k \ge 1$. There is no state, only `None`, if it is the Python
        integer 1.

    **Raises:**

    A `ValueError` if `accumulation_steps` is smaller than 1 or not an integer.
    """

    _takes_examples = False

    accumulation_steps: Count

    def init(self, params: Params) -> AccumulateAvgUpdatesState | None:
        return _start(self, params)

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], AccumulateAvgUpdatesState | None]:
        return _accumulated(self, updates, 1, state)


class AverageIncrementallyUpdates(AbstractAggregator):
    r"""Takes the mean over the elements of several calls.

    With $g_{t,i}$ the update of element $i$ in call $t$, it is

    $$\sum_{t=1}^{k} \sum_{i=1}^{B_t} g_{t,i} \Big/ \sum_{t=1}^{k} B_t$$

    after every $k$ calls, which may have different numbers of elements, and 0 in all
    other calls. In an [`eqopt.aggregating.Process`][], the optimizer does not step in
    these. An update that is `None` counts as in
    [`eqopt.aggregating.AccumulateAvgUpdates`][].

    **Arguments:**

    - `per_elt_axis`: the axis along which the elements are, or a sequence of axes.
        Negative axes count from the end. `None` if each call has a single element
        without an axis.
    - `accumulation_steps`: $k \ge 1$. There is no state, only `None`, if it is the
        Python integer 1.

    **Raises:**

    A `ValueError` if `accumulation_steps` is smaller than 1 or not an integer. In
    `update`, a `ValueError` that names the key path if updates have no such axes, or
    different numbers of elements.
    """

    per_elt_axis: Axes | None = eqx.field(static=True, converter=_hashable)
    accumulation_steps: Count

    def init(self, params: Params) -> AccumulateAvgUpdatesState | None:
        return _start(self, params)

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], AccumulateAvgUpdatesState | None]:
        if self.per_elt_axis is None:
            return _accumulated(self, updates, 1, state)
        means, size = _element_means(self, updates, params)
        return _accumulated(self, means, size, state)


class PerElementMeanAndSumSqDiffGradsState(eqx.Module):
    """Mean and sum of squared differences so far.

    **Attributes:**

    - `micro_step`: the number of calls so far, a 0-d int32 array; 0 after the last one.
    - `ready`: whether the last call completed a result, a 0-d bool array.
    - `sample_size`: the number of elements so far, a 0-d int32 array, which saturates.
    - `mean_grads`: the mean, a tree like the parameters in at least float32. (When
        `ready`, it and `sum_sq_diff_grads` stay until the next call overwrites them.)
    - `sum_sq_diff_grads`: the sum of squared differences from the mean, a tree like the
        parameters in at least float32, real also for complex parameters.
    """

    micro_step: Int[Array, ""]
    ready: Bool[Array, ""]
    sample_size: Int[Array, ""]
    mean_grads: Updates
    sum_sq_diff_grads: Nonnegative


@equation(elementwise=True)
def merge(g, sum_sq_diff, mean_grads, sum_sq_diff_grads, *, part, pairs, is_first):
    # Selected, not multiplied by zero, so that NaNs of the last result disappear.
    old = jnp.where(is_first, 0, mean_grads)
    diff = g - old
    merged = sum_sq_diff_grads + sum_sq_diff + pairs * abs_sq(diff)
    return g, old + diff * part, jnp.where(is_first, sum_sq_diff, merged)


class PerElementMeanAndSumSqDiffGrads(AbstractAggregator):
    r"""Computes the mean and the variance over the elements of several calls.

    Over all $n$ elements $g_i$ of $k$ calls, which may have different numbers of
    elements,

    $$\bar g = \frac{1}{n} \sum_{i=1}^{n} g_i, \qquad
      M = \sum_{i=1}^{n} |g_i - \bar g|^2$$

    element by element, so that $M / (n - 1)$ is the unbiased variance. The update is
    $\bar g$ in every $k$-th call, and 0 in all other calls. In an
    [`eqopt.aggregating.Process`][], the following transformations get two extra
    arguments:

    - `sum_sq_diff_grads`: $M$, a tree like the parameters, in at least float32.
    - `sample_size`: $n$, an integer, or a 0-d int32 array if $k > 1$.

    Updates that are `None` count as zeros, as in
    [`eqopt.aggregating.AccumulateAvgUpdates`][].

    The mean $\bar g_B$ and the sum $M_B$ of the $B$ elements of a call are combined
    with the mean and the sum of the $A$ elements before them, without a difference of
    large numbers (Chan et al.):

    $$\bar g = \bar g_A + \frac{B}{A + B}\, (\bar g_B - \bar g_A), \qquad
      M = M_A + M_B + \frac{A B}{A + B}\, |\bar g_B - \bar g_A|^2.$$

    **Arguments:**

    - `per_elt_axis`: the axis along which the elements are, or a sequence of axes.
        Negative axes count from the end. Defaults to 0.
    - `accumulation_steps`: $k \ge 1$. There is no state, only `None`, if it is the Python
        integer 1. Defaults to 1.

    **Raises:**

    A `ValueError` if `accumulation_steps` is smaller than 1 or not an integer. In
    `update`, a `ValueError` that names the key path if updates have no such axes, or
    different numbers of elements.

    ??? cite "Reference"

        ```bibtex
        @article{chan1983algorithms,
            author = {Chan, Tony F. and Golub, Gene H. and LeVeque, Randall J.},
            title = {Algorithms for Computing the Sample Variance: Analysis and
                     Recommendations},
            journal = {The American Statistician},
            volume = {37},
            number = {3},
            pages = {242--247},
            year = {1983},
        }
        ```
    """

    per_elt_axis: Axes = eqx.field(static=True, default=0, converter=_hashable)
    accumulation_steps: Count = 1

    def init(self, params: Params) -> PerElementMeanAndSumSqDiffGradsState | None:
        if not _is_accumulating(self):
            return None
        mean = wide_zeros_like(params)
        return PerElementMeanAndSumSqDiffGradsState(
            micro_step=jnp.zeros((), jnp.int32),
            ready=jnp.zeros((), bool),
            sample_size=jnp.zeros((), jnp.int32),
            mean_grads=mean,
            sum_sq_diff_grads=real_full_like(mean, 0),
        )

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], PerElementMeanAndSumSqDiffGradsState | None]:
        axes = _as_tuple(self.per_elt_axis)
        size = batch_size(updates, params, axes)
        mean, sum_sq_diff = _moments_of(updates, axes)
        if not _is_accumulating(self):
            check_state(self, state, type(None))
            aux = {"sum_sq_diff_grads": sum_sq_diff, "sample_size": size}
            return mean, aux, None
        check_state(self, state, PerElementMeanAndSumSqDiffGradsState)
        state, is_first, part = _count_on(self, state, size)
        before = (state.sample_size - size).astype(part.dtype)
        _, mean, sums = leafwise(
            merge,
            fill_missing(mean, state.mean_grads),
            state.mean_grads,
            state.sum_sq_diff_grads,
            reads={"sum_sq_diff": fill_missing(sum_sq_diff, state.sum_sq_diff_grads)},
            part=part,
            pairs=before * part,
            is_first=is_first,
        )
        state = dataclasses.replace(state, mean_grads=mean, sum_sq_diff_grads=sums)
        aux = {"sum_sq_diff_grads": load(sums), "sample_size": state.sample_size}
        return load(mean), aux, state


#
# One call
#


def get_batch_size_from_per_elt_updates(
    per_elt_updates: Updates, per_elt_axis: Axes
) -> int:
    """Counts the elements in per-element updates.

    **Arguments:**

    - `per_elt_updates`: a tree of arrays with the elements along some axes, or `None`.
    - `per_elt_axis`: the axis of the elements, or a sequence of axes. Negative axes
        count from the end.

    **Returns:**

    The size of the axis, or the product of the sizes of all axes. It is 1 if there are
    no arrays.

    **Raises:**

    A `ValueError` that names the key path if an array has no such axis, another number
    of elements than the others, or no elements.
    """
    return batch_size(per_elt_updates, None, _as_tuple(per_elt_axis))


def _as_tuple(axes: Axes) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, Sequence) else (axes,)


def _element_means(owner: Any, updates: Updates, params: Params | None):
    """Takes the means over the elements, and counts the elements."""
    axes = _as_tuple(owner.per_elt_axis)
    size = batch_size(updates, params, axes)
    leaves, treedef = flatten_updates(updates)
    means = [None if g is None else _mean(g, axes) for g in leaves]
    return treedef.unflatten(means), size


@functools.partial(jax.jit, static_argnames="axes")
def _mean(g: Inexact[Array, "..."], axes: tuple[int, ...]) -> Inexact[Array, "..."]:
    return jnp.mean(at_least_float32(g), axes)


def _moments_of(updates: Updates, axes: tuple[int, ...]) -> tuple[Updates, Updates]:
    """Means and sums of squared differences over the elements of one call."""
    leaves, treedef = flatten_updates(updates)
    pairs = [(None, None) if g is None else _moments(g, axes) for g in leaves]
    means, sums = zip(*pairs, strict=True) if pairs else ((), ())
    return treedef.unflatten(means), treedef.unflatten(sums)


@functools.partial(jax.jit, static_argnames="axes")
def _moments(g: Inexact[Array, "..."], axes: tuple[int, ...]):
    g = at_least_float32(g)
    mean = jnp.mean(g, axes, keepdims=True)
    return jnp.squeeze(mean, axes), jnp.sum(abs_sq(g - mean), axes)


#
# Several calls
#


def _is_accumulating(owner: Any) -> bool:
    """Whether it needs more than one call, as far as known before tracing."""
    steps = owner.accumulation_steps
    return not (isinstance(steps, int) and steps == 1)


def _count_on(owner: Any, old: Any, size: int) -> tuple[Any, Bool[Array, ""], Scalar]:
    """The new counters, whether the state restarts, and the share of the new elements.

    **Arguments:**

    - `owner`: the aggregator.
    - `old`: a state with the fields `micro_step`, `ready` and `sample_size`.
    - `size`: the number of new elements.
    """
    is_first = old.micro_step == 0
    most = jnp.iinfo(jnp.int32).max  # saturates instead of overflowing
    total = jnp.minimum(jnp.where(is_first, 0, old.sample_size), most - size) + size
    ready = old.micro_step + 1 >= jnp.asarray(owner.accumulation_steps, jnp.int32)
    step = jnp.where(ready, 0, old.micro_step + 1)
    new = dataclasses.replace(old, micro_step=step, ready=ready, sample_size=total)
    return new, is_first, size / total.astype(jnp.float32)


def _start(owner: Any, params: Params) -> AccumulateAvgUpdatesState | None:
    if not _is_accumulating(owner):
        return None
    return AccumulateAvgUpdatesState(
        micro_step=jnp.zeros((), jnp.int32),
        ready=jnp.zeros((), bool),
        sample_size=jnp.zeros((), jnp.int32),
        avg_grad=wide_zeros_like(params),
    )


def _accumulated(owner: AbstractAggregator, means: Updates, size: int, state: State):
    if not _is_accumulating(owner):
        check_state(owner, state, type(None))
        return means, {}, None
    check_state(owner, state, AccumulateAvgUpdatesState)
    state, is_first, part = _count_on(owner, state, size)
    means = fill_missing(means, state.avg_grad)
    _, mean = leafwise(accumulate, means, state.avg_grad, part=part, is_first=is_first)
    return load(mean), {}, dataclasses.replace(state, avg_grad=mean)
