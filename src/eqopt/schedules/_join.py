"""Schedules one after the other."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Schedule
from ._dtypes import IntScalarLike, as_count, of_counts, reachable, real_dtype
from ._schedule import AbstractSchedule
from ._validation import check_ascending, check_schedules, check_value


class Join(AbstractSchedule):
    r"""Schedules one after the other; each counts from its own beginning.

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

    A schedule is evaluated only at its own counts. At other counts, it is evaluated at
    the nearest one, and the result is ignored. So its values outside its range cannot
    make derivatives NaN.

    **Arguments:**

    - `schedules`: $s_0, …, s_{n-1}$, at least one: schedules, or any functions of a 0-d
        integer array that return a number or a 0-d array.
    - `boundaries`: $b_1 < … < b_{n-1}$, the counts at which the next schedule begins:
        integers or 0-d integer arrays, or one array, of at least 0. There is one fewer
        than `schedules`.

    **Raises:**

    A `ValueError` or `TypeError` if `schedules` is empty, if `boundaries` is not
    ascending or does not match `schedules`, or if a schedule is not a function; when
    called, if a schedule does not return a real number.
    """

    schedules: tuple[Schedule, ...]
    boundaries: tuple[IntScalarLike, ...]

    # The parts are checked below, all of them and with better messages than beartype's.
    def __init__(self, schedules: Iterable[Any], boundaries: Iterable[Any]):
        self.schedules = tuple(schedules)
        self.boundaries = tuple(boundaries)

    def __check_init__(self) -> None:
        check_schedules(self, self.schedules)
        if not self.schedules:
            raise ValueError(
                "Join: `schedules` must have at least one schedule, but is empty."
            )
        if len(self.schedules) != len(self.boundaries) + 1:
            raise ValueError(
                "Join: `boundaries` must have one entry fewer than `schedules`, but "
                f"there are {len(self.boundaries)} for {len(self.schedules)} "
                "schedules. Pass the count at which each schedule except the first "
                "begins."
            )
        check_ascending(self, "boundaries", self.boundaries, 0)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return one_after_the_other(self, self.schedules, self.boundaries, count)


def one_after_the_other(
    owner: object,
    schedules: tuple[Schedule, ...],
    boundaries: Iterable[Any],
    count: IntScalarLike,
) -> Float[Array, ""]:
    """The value of the active schedule; each counts from its own beginning."""
    count = as_count(count)
    starts = reachable((0, *boundaries))
    values = []
    for i, schedule in enumerate(schedules[: len(starts)]):
        own = jnp.minimum(count, starts[i + 1] - 1) if starts[i + 1 :] else count
        values.append(schedule(jnp.maximum(own, starts[i]) - starts[i]))
        check_value(owner, f"schedules[{i}]", values[-1])
    dtype = real_dtype()
    joined = jnp.asarray(values[0], dtype)
    for start, value in zip(starts[1:], values[1:], strict=True):
        joined = jnp.where(count < start, joined, jnp.asarray(value, dtype))
    return joined
