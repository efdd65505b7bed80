"""Bounds updates: each element, or all of them together, also by their own history."""

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._arguments.fields import static_choice
from .._core import (
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    equation,
    leafwise,
)
from .._trees.states import check_size, check_state
from .._types import (
    AtLeast,
    IntegerLike,
    Leaf,
    Params,
    Scalar,
    State,
    Updates,
    ZeroOrMore,
)
from ..numerics._numerics import safe_increment, safe_sqrt
from ..tree import norm
from .normalize import AbstractScaleByNorm
from .scale import scale


def mark_present(count, window) -> tuple[Bool[Array, " window"], Any]:
    """Which places of a history have values, and their number, at least 2."""
    n = jnp.maximum(jnp.minimum(count, window), 2).astype(jnp.float32)
    return jnp.arange(window, dtype=count.dtype) < count, n


def is_known(owner: Any, count: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether there are `min_history` values: by default, half of the window."""
    least = owner.min_history
    least = max(2, owner.window // 2) if least is None else least
    return count >= jnp.asarray(least).astype(count.dtype)


def remember(x, history: Float[Array, " window"], count):
    """The history and its count after `x`, which must be finite to be remembered."""
    places = jnp.arange(len(history), dtype=count.dtype)
    is_finite = jnp.isfinite(x)
    here = (places == count % len(history)) & is_finite
    count = jnp.where(is_finite, safe_increment(count), count)
    return jnp.where(here, x, history), count


@equation(elementwise=True)
def clip(g, *, max_delta):
    return by_parts(lambda g: jnp.clip(g, -max_delta, max_delta), g)


def by_parts(fn: Callable, *arrays: Leaf) -> Leaf:
    """A function of real numbers, applied to both parts of complex numbers."""
    if not jnp.iscomplexobj(arrays[0]):
        return fn(*arrays)
    return lax.complex(fn(*(x.real for x in arrays)), fn(*(x.imag for x in arrays)))


class Clip(AbstractStateless):
    r"""Clips each element of the updates to $[-\delta, \delta]$.

    For complex updates, the real and imaginary parts are clipped separately. NaN stays
    NaN.

    **Arguments:**

    - `max_delta`: $\delta \ge 0$.

    **Raises:**

    A `ValueError` if `max_delta` is negative.
    """

    max_delta: ZeroOrMore

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(clip)


class ClipByGlobalNorm(AbstractScaleByNorm):
    r"""Scales all updates down together if their global norm is too large.

    $$u = g \cdot \min\left(1, \frac{c}{\|g\|_2}\right), \qquad
      \|g\|_2^2 = \sum_{\text{leaves}} \sum_i |g_i|^2.$$

    Zero updates stay zero, also for $c = 0$. A NaN anywhere makes all updates NaN. An
    infinity becomes NaN, and all other updates become zero. To skip such steps, wrap
    the optimizer in [`eqopt.ApplyIfFinite`][].
    In float32, the square of a norm above 1.8e19 overflows: then all updates are zero,
    as if the step were skipped.

    If this comes first and `step` gets the extra argument `grad_norm`, that is
    $\|g\|_2$, and nothing is reduced.

    **Arguments:**

    - `max_norm`: $c \ge 0$.

    **Raises:**

    A `ValueError` if `max_norm` is negative; in `update`, if `grad_norm` is not one
    real number.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pascanu2013difficulty,
            author = {Pascanu, Razvan and Mikolov, Tomas and Bengio, Yoshua},
            title = {On the Difficulty of Training Recurrent Neural Networks},
            booktitle = {International Conference on Machine Learning},
            year = {2013},
        }
        ```
    """

    max_norm: ZeroOrMore

    def _share(self, length: Array) -> Scalar:
        # A norm that cannot overflow, with a second pass over the gradients in a branch,
        # takes twice as long to trace and to compile (measured with 1000 leaves).
        max_norm = jnp.asarray(self.max_norm, length.dtype)
        # `where` instead of `minimum` keeps a NaN norm visible. The denominator is 1 if
        # it is not used, so that the derivative is finite.
        exceeds = ~(length <= max_norm)
        denominator = jnp.where(exceeds, length, 1)
        return jnp.where(exceeds, max_norm / denominator, 1)


class ClipByHistoryState(eqx.Module):
    """A ring buffer of the last norms.

    **Attributes:**

    - `norms`: the norms before clipping, a float32 array of shape `(window,)`.
    - `count`: the number of norms so far, a 0-d int32 array. The next one is stored at
        index `count % window`.
    """

    norms: Float[Array, " window"]
    count: Int[Array, ""]


class ClipByHistory(AbstractTransformation):
    r"""Scales all updates down together if their norm is far above the previous ones.

    $$u = g \cdot \min\left(1, \frac{m + \sigma s}{\|g\|_2}\right),$$

    where $m$ and $s$ are the mean and the standard deviation (with $n$ in the
    denominator) of the last $n \le$ `window` norms. Norms are remembered as they were
    before clipping: otherwise, the bound could only fall, and a lasting rise would be
    clipped forever.

    There is no absolute scale to tune: multiplying all gradients by a number changes
    nothing. If all previous norms were equal, they are the bound. A NaN stays in the
    updates, and a norm that is not finite is not remembered. If the norm overflows (in
    float32, above 1.8e19), finite updates become zero, as in
    [`eqopt.ClipByGlobalNorm`][].

    To skip such steps instead, use [`eqopt.SkipStep`][] with [`eqopt.SigmaRule`][].

    **Arguments:**

    - `window`: the number of previous values to compare with, an integer of at least 2;
        static. Defaults to 128.
    - `sigma`: $\sigma \ge 0$. Defaults to 3.0.
    - `min_history`: the number of norms that must be known before the updates are
        clipped, an integer of at least 2. Defaults to half of `window`, at least 2.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        The code of `levanter` (`optim/clip_update_norm.py`), which applies it to the
        updates of an optimizer before the learning rate.
    """

    _loads = "nothing"

    window: Annotated[int, AtLeast(2)] = static_choice(static=True, default=128)
    sigma: ZeroOrMore = 3.0
    min_history: Annotated[IntegerLike, AtLeast(2)] | None = None

    def init(self, params: Params) -> ClipByHistoryState:
        zeros = jnp.zeros(self.window, jnp.float32)
        return ClipByHistoryState(zeros, jnp.zeros((), jnp.int32))

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_size(self, "window", len(state.norms))
        x = norm(updates).astype(jnp.float32)
        is_there, n = mark_present(state.count, self.window)
        # Divided by the largest, so that no square overflows.
        largest = jnp.max(state.norms)
        norms = state.norms / jnp.where(largest > 0, largest, 1)
        mean = jnp.sum(norms) / n
        spread = jnp.sum(jnp.where(is_there, (norms - mean) ** 2, 0)) / n
        sigma: Any = jnp.asarray(self.sigma).astype(jnp.float32)
        bound = largest * (mean + sigma * safe_sqrt(spread))
        exceeds = (x > bound) & is_known(self, state.count)
        # The denominator is 1 if it is not used, so that the derivative is finite.
        share = jnp.where(exceeds, bound / jnp.where(exceeds, x, 1), 1)
        new = ClipByHistoryState(*remember(x, state.norms, state.count))
        return leafwise(scale, updates, step_size=share), new
