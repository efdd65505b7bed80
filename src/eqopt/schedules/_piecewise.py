"""Values at given counts, and the values between them."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments.checks import check_interval
from .._jax_internals import is_traced
from .._types import Interval, RealScalarLike
from ._decay import SHAPES
from ._dtypes import (
    Finite,
    IntScalarLike,
    as_count,
    as_integer,
    as_real,
    compiled,
    of_counts,
)
from ._schedule import AbstractSchedule, as_tuple, check_boundaries


def interpolate(count, values, boundaries, interpolate_type) -> Float[Array, ""]:
    """From the first value at 0 to each of the others at its boundary, then constant.

    For an interval without steps, only the end is used.
    """
    heights = jnp.stack(values)
    starts = jnp.stack([jnp.zeros_like(count), *boundaries])
    last = len(boundaries)
    i = jnp.sum(starts <= count) - 1
    j = jnp.minimum(i + 1, last)
    elapsed = jnp.where(i < last, count - starts[i], 0).astype(heights.dtype)
    steps = jnp.maximum(starts[j] - starts[i], 1).astype(heights.dtype)
    left = SHAPES[interpolate_type](elapsed / steps)
    # Exact at the beginning and at the end.
    return heights[i] * left + heights[j] * (1 - left)


@compiled
def _piecewise_constant(count, init_value, scales, boundaries) -> Float[Array, ""]:
    values = accumulate((init_value, *scales), mul)
    value = next(values)
    for boundary, later in zip(boundaries, values, strict=True):
        value = jnp.where(count < boundary, value, later)
    return value


@partial(compiled, static_argnames="interpolate_type")
def _piecewise_interpolate(count, init_value, scales, boundaries, *, interpolate_type):
    values = tuple(accumulate((init_value, *scales), mul))
    return interpolate(count, values, boundaries, interpolate_type)


Pairs = tuple[tuple[IntScalarLike, RealScalarLike], ...]


def _sorted_pairs(given: Mapping[Any, Any] | Iterable[Any] | None) -> tuple[Any, ...]:
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    pairs = tuple((boundary, scale) for boundary, scale in pairs)
    if any(is_traced(boundary) for boundary, _ in pairs):
        return pairs
    # In NumPy, because comparing JAX arrays would be traced under `jit`.
    return tuple(sorted(pairs, key=lambda pair: np.asarray(pair[0])))


def _check_pairs(owner: "PiecewiseConstant | PiecewiseInterpolate") -> None:
    name, pairs = "boundaries_and_scales", owner.boundaries_and_scales
    check_boundaries(name, tuple(boundary for boundary, _ in pairs))
    for boundary, scale in pairs:
        place = f"{name}[{boundary}]"
        check_interval(place, scale, 0, includes_high=False)


def _arrays(owner: "PiecewiseConstant | PiecewiseInterpolate") -> tuple[Any, ...]:
    pairs = owner.boundaries_and_scales
    return (
        as_real(owner.init_value),
        tuple(as_real(scale) for _, scale in pairs),
        tuple(as_integer(boundary) for boundary, _ in pairs),
    )


class PiecewiseConstant(AbstractSchedule):
    r"""Constant between given counts, and multiplied by a factor at each of them.

    $$s(t) = I \prod_{b_i \le t} f_i$$

    !!! example

        ```python
        # 1 at first, 0.1 from the count 100 on, 0.01 from 200 on.
        eqopt.schedules.PiecewiseConstant(1.0, {100: 0.1, 200: 0.1})
        ```

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `boundaries_and_scales`: a dictionary that maps $b_i \ge 0$, integers, to
        $f_i \ge 0$, numbers or 0-d arrays; or pairs of the two, the form of the field.
        Defaults to `None`, which means no boundaries.

    **Raises:**

    A `ValueError` or `TypeError` if a boundary is negative, not an integer, or
    repeated, if a scale is negative, or if a value is not finite or has axes.
    """

    init_value: Finite
    boundaries_and_scales: Pairs = eqx.field(converter=_sorted_pairs, default=None)

    def __check_init__(self) -> None:
        _check_pairs(self)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _piecewise_constant(as_count(count), *_arrays(self))


class PiecewiseInterpolate(AbstractSchedule):
    r"""Interpolates values at given counts, along lines or half cosine waves.

    The values are $v_0 = I$ at the count 0 and $v_i = f_i v_{i-1}$ at the count $b_i$.
    Each is a multiple of the previous value, not of $I$. After the last one, the value
    is constant. In between, with $x = (t - b_i) / (b_{i+1} - b_i)$,

    $$s(t) = v_{i+1} + (v_i - v_{i+1})\, g(x), \qquad
        g(x) = 1 - x \;\text{ or }\; (1 + \cos \pi x) / 2.$$

    **Arguments:**

    - `interpolate_type`: `"linear"` or `"cosine"`.
    - `init_value`: $I$, a number or a 0-d array.
    - `boundaries_and_scales`: a dictionary that maps $b_i \ge 0$, integers, to
        $f_i \ge 0$, numbers or 0-d arrays; or pairs of the two, the form of the field.
        Defaults to `None`, which means no boundaries.

    **Raises:**

    A `ValueError` or `TypeError` if a boundary is negative, not an integer, or
    repeated, if a scale is negative, if there is no such `interpolate_type`, or if a
    value is not finite or has axes.
    """

    interpolate_type: Literal["linear", "cosine"] = eqx.field(static=True)
    init_value: Finite
    boundaries_and_scales: Pairs = eqx.field(converter=_sorted_pairs, default=None)

    def __check_init__(self) -> None:
        _check_pairs(self)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _piecewise_interpolate(
            as_count(count), *_arrays(self), interpolate_type=self.interpolate_type
        )


class MultiStep(AbstractSchedule):
    r"""Multiplied by the same factor at each of some counts, and constant in between.

    $$s(t) = I\, \gamma^{\#\{i \,:\, m_i \le t\}}$$

    This is `torch.optim.lr_scheduler.MultiStepLR`. For different factors, use
    [`eqopt.schedules.PiecewiseConstant`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `milestones`: $0 \le m_1 < m_2 < …$, integers or 0-d integer arrays.
    - `gamma`: $\gamma \ge 0$, a number or a 0-d array. Defaults to 0.1.

    **Raises:**

    A `ValueError` or `TypeError` if `milestones` are not ascending, negative or not
    integers, if `gamma` is negative, or if a value is not finite or has axes.
    """

    init_value: Finite
    milestones: tuple[IntScalarLike, ...] = eqx.field(converter=as_tuple)
    gamma: Annotated[RealScalarLike, Interval(0)] = 0.1

    def __check_init__(self) -> None:
        check_boundaries("milestones", self.milestones)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _piecewise_constant(
            as_count(count),
            as_real(self.init_value),
            (as_real(self.gamma),) * len(self.milestones),
            tuple(map(as_integer, self.milestones)),
        )
