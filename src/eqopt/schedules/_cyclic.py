"""Up and down, again and again."""

from functools import partial
from typing import Annotated, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Interval, RealScalarLike
from ._dtypes import (
    Finite,
    IntScalarLike,
    Steps,
    StepsOrZero,
    as_count,
    as_integers,
    as_reals,
    compiled,
    of_counts,
)
from ._polynomial import between
from ._schedule import AbstractSchedule


# The height of the triangle, as a function of the cycle and the step.
_HEIGHTS = {
    "triangular": lambda cycles, count, gamma: jnp.ones_like(gamma),
    "triangular2": lambda cycles, count, gamma: jnp.exp2(-cycles),
    "exp_range": lambda cycles, count, gamma: gamma**count,
}


@partial(compiled, static_argnames="mode")
def _cyclic(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    peak_value: Float[Array, ""],
    gamma: Float[Array, ""],
    step_size_up: Int[Array, ""],
    step_size_down: Int[Array, ""],
    *,
    mode: str,
) -> Float[Array, ""]:
    dtype = gamma.dtype
    up, down = jnp.maximum(step_size_up, 1), jnp.maximum(step_size_down, 0)
    # The sum may exceed all counts and overflow the dtype. In that case, the first
    # cycle never ends.
    largest = jnp.iinfo(count.dtype).max
    is_endless = down > largest - up
    period = jnp.where(is_endless, largest, up + down)
    phase = jnp.where(is_endless, count, count % period)
    cycles = jnp.where(is_endless, 0, count // period)
    rising = phase.astype(dtype) / up.astype(dtype)
    falling = (up - phase + down).astype(dtype) / jnp.maximum(down, 1).astype(dtype)
    height = _HEIGHTS[mode](cycles.astype(dtype), count.astype(dtype), gamma)
    part = jnp.where(phase <= up, rising, falling)
    return between(peak_value, init_value, part * height)


class Cyclic(AbstractSchedule):
    r"""Up and down along straight lines, repeatedly: triangles.

    $$s(t) = I + (M - I)\, h(t) \begin{cases}
        u / U & u \le U \\
        (U + D - u) / D & u > U
    \end{cases} \qquad u = t \bmod (U + D)$$

    `mode` is the height $h$ of the triangles: $1$ for `"triangular"`, $2^{-i}$ in the
    cycle $i = \lfloor t / (U + D) \rfloor$ for `"triangular2"`, and $\gamma^t$ for
    `"exp_range"`. This is `torch.optim.lr_scheduler.CyclicLR`.

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array.
    - `step_size_up`: $U \ge 1$, an integer or a 0-d integer array. Defaults to 2000.
    - `step_size_down`: $D \ge 0$, an integer or a 0-d integer array; with $D = 0$ the
        triangles are saw teeth, in which the peak is not quite reached. Defaults to
        `None`, which is $U$.
    - `mode`: `"triangular"` (the default), `"triangular2"` or `"exp_range"`.
    - `gamma`: $\gamma \in (0, 1]$, a number or a 0-d array, for `"exp_range"` only.
        Defaults to 1.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is out of its range or not an
    integer, if there is no such `mode`, if `gamma` is out of its range, or if a value
    is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{smith2017cyclical,
            author = {Smith, Leslie N.},
            title = {Cyclical Learning Rates for Training Neural Networks},
            booktitle = {{IEEE} Winter Conference on Applications of Computer Vision},
            year = {2017},
            eprint = {1506.01186},
            archivePrefix = {arXiv},
        }
        ```
    """

    init_value: Finite
    peak_value: Finite
    step_size_up: Steps = 2000
    step_size_down: StepsOrZero | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = eqx.field(
        static=True, default="triangular"
    )
    gamma: Annotated[RealScalarLike, Interval(0, 1, includes_low=False)] = 1.0

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        down = "step_size_up" if self.step_size_down is None else "step_size_down"
        return _cyclic(
            as_count(count),
            *as_reals(self, "init_value", "peak_value", "gamma"),
            *as_integers(self, "step_size_up", down),
            mode=self.mode,
        )
