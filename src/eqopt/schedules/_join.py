"""Schedules one after the other."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Schedule
from ._dtypes import (
    IntScalarLike,
    as_count,
    as_integer,
    is_integer,
    largest_count,
    real_dtype,
)
from ._schedule import AbstractSchedule
from ._validation import ascending


class Join(AbstractSchedule):
    r"""Schedules one after the other, each of which counts from its own beginning.

    $$s(t) = s_i(t - b_i) \quad\text{for}\quad b_i \le t < b_{i+1},
        \qquad b_0 = 0,\; b_n = \infty$$

    !!! example

        ```python
        from eqopt.schedules import Constant, Join, Linear

        # Warm up, stay, decay.
        Join(
            [Linear(0.0, 1e-3, 100), Constant(1e-3), Linear(1e-3, 0.0, 200)],
            boundaries=[100, 800],
        )
        ```

    A schedule is evaluated at counts of its own only: at others it sees the nearest of
    them, and is ignored. So what it does outside cannot make derivatives NaN.

    **Arguments:**

    - `schedules`: $s_0, …, s_{n-1}$, at least two: schedules, or any functions of a 0-d
        integer array that give a number or a 0-d array.
    - `boundaries`: $b_1 < … < b_{n-1}$, the counts from which on the next schedule
        applies: integers or 0-d integer arrays, or one array, of at least 0. One fewer
        than there are schedules.

    **Raises:**

    A `ValueError` or `TypeError` if `boundaries` is empty, not ascending, or does not
    match `schedules`, or if one of these is no function; when called, if one of them
    gives something else than a real number.
    """

    schedules: tuple[Schedule, ...]
    boundaries: tuple[IntScalarLike, ...]

    # The parts are checked below, all of them and with better words than beartype's.
    def __init__(self, schedules: Iterable[Any], boundaries: Iterable[Any]):
        self.schedules = tuple(schedules)
        self.boundaries = tuple(boundaries)

    def __check_init__(self):
        for i, schedule in enumerate(self.schedules):
            if not callable(schedule):
                raise TypeError(
                    "Join: `schedules` must be schedules or functions of the count, "
                    f"but `schedules[{i}]` is {schedule!r}. For a fixed value use "
                    "`Constant(...)`."
                )
            if isinstance(schedule, type):
                raise TypeError(
                    "Join: `schedules` must be schedules or functions of the count, "
                    f"but `schedules[{i}]` is the class {schedule.__name__}. Create an "
                    "instance of it."
                )
        if not self.boundaries:
            raise ValueError(
                "Join: `boundaries` must name the count at which each schedule but the "
                "first begins, but is empty. A single schedule needs no `Join`."
            )
        if len(self.schedules) != len(self.boundaries) + 1:
            raise ValueError(
                "Join: `boundaries` must be one fewer than `schedules`, but there are "
                f"{len(self.boundaries)} for {len(self.schedules)} schedules. Name the "
                "count at which each schedule but the first begins."
            )
        if not all(is_integer(b) for b in self.boundaries):
            raise TypeError(
                f"Join: `boundaries` must be integers, but is {self.boundaries}. Round "
                "them with `int(...)`, or divide with `//`."
            )
        if not ascending(-1, *self.boundaries, largest_count() + 1):
            raise ValueError(
                "Join: `boundaries` must ascend strictly, from at least 0 to at most "
                f"{largest_count()}, but is {self.boundaries}. They are counts since "
                "the start: if you have the length of each schedule, add them up with "
                "`itertools.accumulate`."
            )

    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        count = as_count(count)
        starts = [as_integer(b) for b in (0, *self.boundaries)]
        values = []
        for i, schedule in enumerate(self.schedules):
            own = jnp.minimum(count, starts[i + 1] - 1) if starts[i + 1 :] else count
            values.append(schedule(jnp.maximum(own, starts[i]) - starts[i]))
            _check_value(i, values[-1])
        dtype = real_dtype(*values)
        joined = jnp.asarray(values[0], dtype)
        for start, value in zip(starts[1:], values[1:], strict=True):
            joined = jnp.where(count < start, joined, jnp.asarray(value, dtype))
        return joined


def _check_value(i: int, value: Any) -> None:
    real = isinstance(value, int | float) or (
        isinstance(value, Array | np.ndarray | np.generic)
        and np.ndim(value) == 0
        and not jnp.issubdtype(value.dtype, jnp.complexfloating)
    )
    if not real:
        raise TypeError(
            f"Join: each schedule must give a real number or a 0-d array, but "
            f"`schedules[{i}]` gave {value!r}."
        )
