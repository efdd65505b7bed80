"""Down along half a cosine wave, repeatedly."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._cosine import WarmupCosineDecay, half_wave
from ._dtypes import (
    Finite,
    IntScalarLike,
    Steps,
    as_count,
    as_integers,
    as_reals,
    compiled,
    later,
    of_counts,
)
from ._join import one_after_the_other
from ._polynomial import between
from ._schedule import AbstractSchedule


def _cycle(
    count: Int[Array, ""],
    decay_steps: Int[Array, ""],
    t_mult: Int[Array, ""],
    dtype: jnp.dtype,
) -> tuple[Int[Array, ""], Int[Array, ""], Float[Array, ""]]:
    """How many steps of the current cycle have been taken, and its length.

    A length that exceeds all counts is clipped to the largest count; as a float, it is
    exact.
    """
    largest = jnp.iinfo(count.dtype).max
    first, factor = jnp.maximum(decay_steps, 1), jnp.maximum(t_mult, 1)
    # Only integers: a logarithm would miss the beginnings of cycles by rounding. If
    # each cycle is at least twice as long as the previous one, only a few fit below
    # `largest`.
    elapsed, length, longest = count, first, largest // factor
    duration = first.astype(dtype)
    for _ in range(jnp.iinfo(count.dtype).bits - 1):
        is_over = elapsed >= length
        elapsed = jnp.where(is_over, elapsed - length, elapsed)
        fits = length <= longest
        longer = jnp.where(fits, length * factor, largest)
        beyond = length.astype(dtype) * factor.astype(dtype)
        longer_duration = jnp.where(fits, longer.astype(dtype), beyond)
        duration = jnp.where(is_over, longer_duration, duration)
        length = jnp.where(is_over, longer, length)
    is_equal = factor == 1
    return (
        jnp.where(is_equal, count % first, elapsed),
        jnp.where(is_equal, first, length),
        jnp.where(is_equal, first.astype(dtype), duration),
    )


@compiled
def _cosine_restarts(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    end_value: Float[Array, ""],
    decay_steps: Int[Array, ""],
    t_mult: Int[Array, ""],
) -> Float[Array, ""]:
    dtype = init_value.dtype
    elapsed, length, duration = _cycle(count, decay_steps, t_mult, dtype)
    wave = half_wave(elapsed, length, jnp.ones((), dtype), duration)
    return between(init_value, end_value, wave)


class CosineRestarts(AbstractSchedule):
    r"""Down along half a cosine wave, repeatedly, with longer and longer cycles.

    $$s(t) = E + (I - E)\, \frac{1 + \cos(\pi\, (t - t_i) / T_i)}{2}
        \quad\text{for}\quad t_i \le t < t_i + T_i,$$

    where $T_i = T m^i$ is the length of cycle $i$, and $t_i$, the sum of all previous
    lengths, is its beginning.

    This is `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`. For cycles with
    arbitrary lengths and heights, use [`eqopt.schedules.SGDR`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `decay_steps`: $T \ge 1$, an integer or a 0-d integer array: the length of the first
        cycle.
    - `t_mult`: $m \ge 1$, an integer or a 0-d integer array. Defaults to 1.
    - `end_value`: $E$, a number or a 0-d array. Defaults to 0. It is not quite reached:
        at the count $t_i + T_i$, the value is $I$ again.

    **Raises:**

    A `ValueError` or `TypeError` if `decay_steps` or `t_mult` is not positive or not an
    integer, or if a value is not finite or has axes.

    For the paper, see [`eqopt.schedules.CosineDecay`][].
    """

    init_value: Finite
    decay_steps: Steps
    t_mult: Steps = 1
    end_value: Finite = 0.0

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _cosine_restarts(
            as_count(count),
            *as_reals(self, "init_value", "end_value"),
            *as_integers(self, "decay_steps", "t_mult"),
        )


class SGDR(AbstractSchedule):
    """Several [`eqopt.schedules.WarmupCosineDecay`][]s, one after the other.

    !!! example

        ```python
        cycle = {"init_value": 0.0, "peak_value": 1e-3, "warmup_steps": 10}
        eqopt.schedules.SGDR(
            [
                {**cycle, "decay_steps": 100},
                {**cycle, "decay_steps": 300, "peak_value": 5e-4},
            ]
        )
        ```

    Each lasts for its `decay_steps`. After the last one, the value stays at its
    `end_value`.

    **Arguments:**

    - `cosine_kwargs`: one or more dictionaries of arguments of
        [`eqopt.schedules.WarmupCosineDecay`][], or such schedules, which is the form of
        the field.

    **Raises:**

    A `ValueError` or `TypeError` if `cosine_kwargs` is empty, or if the arguments of a
    cycle are not valid.

    For the paper, see [`eqopt.schedules.CosineDecay`][].
    """

    cosine_kwargs: tuple[WarmupCosineDecay, ...]

    # The schedules that are created from the dictionaries check them.
    def __init__(self, cosine_kwargs: Iterable[Any]):
        self.cosine_kwargs = tuple(
            WarmupCosineDecay(**x) if isinstance(x, Mapping) else x
            for x in cosine_kwargs
        )

    def __check_init__(self) -> None:
        if not self.cosine_kwargs:
            raise ValueError(
                "SGDR: `cosine_kwargs` must have the arguments of at least one cycle, "
                "but is empty. Pass dictionaries of arguments of `WarmupCosineDecay`."
            )
        for i, cycle in enumerate(self.cosine_kwargs):
            if not isinstance(cycle, WarmupCosineDecay):
                raise TypeError(
                    f"SGDR: `cosine_kwargs[{i}]` must be a dictionary or a "
                    f"`WarmupCosineDecay`, but is {cycle!r}. For other schedules, use "
                    "`Join`."
                )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        boundaries = accumulate((x.decay_steps for x in self.cosine_kwargs[:-1]), later)
        return one_after_the_other(self, self.cosine_kwargs, boundaries, count)
