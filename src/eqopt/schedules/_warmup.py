"""Up along a straight line, then neither a cosine nor an exponential."""

from functools import partial
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_fields
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
from ._piecewise import LEFT
from ._polynomial import compiled_line, line
from ._schedule import AbstractSchedule
from ._validation import fits


# The remaining part after the fraction `x` of a cool-down.
COOLDOWNS = LEFT | {"1-sqrt": lambda x: 1 - jnp.sqrt(x)}


@partial(compiled, static_argnames="cooldown")
def _warmup_stable_decay(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    peak_value: Float[Array, ""],
    end_value: Float[Array, ""],
    warmup_steps: Int[Array, ""],
    total_steps: Int[Array, ""],
    cooldown_steps: Int[Array, ""],
    *,
    cooldown: str,
) -> Float[Array, ""]:
    dtype = peak_value.dtype
    warmup = line(count, init_value, peak_value, warmup_steps, jnp.zeros_like(count))
    begin = total_steps - cooldown_steps
    elapsed = jnp.clip(count, begin, total_steps) - begin
    steps = jnp.maximum(cooldown_steps, 1).astype(dtype)
    left = COOLDOWNS[cooldown](elapsed.astype(dtype) / steps)
    # On how the end is determined, see `remaining`.
    left = jnp.where(count < total_steps, left, 0)
    # Exact at the beginning and at the end.
    decay = peak_value * left + end_value * (1 - left)
    return jnp.where(count < warmup_steps, warmup, decay)


@compiled
def _inverse_square_root(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    peak_value: Float[Array, ""],
    warmup_steps: Int[Array, ""],
    timescale: Int[Array, ""],
) -> Float[Array, ""]:
    dtype = peak_value.dtype
    warmup = line(count, init_value, peak_value, warmup_steps, jnp.zeros_like(count))
    peak = jnp.maximum(warmup_steps, 0)
    elapsed = jnp.maximum(count, peak) - peak
    scale = jnp.maximum(timescale, 1).astype(dtype)
    decay = peak_value / jnp.sqrt(1 + elapsed.astype(dtype) / scale)
    return jnp.where(count < warmup_steps, warmup, decay)


class WarmupConstant(AbstractSchedule):
    r"""Up along a straight line, then constant.

    $$s(t) = I + (M - I) \min(t / W, 1)$$

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array: the value from $t = W$ on.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        value is always $M$. (In Optax it stays at $I$ forever.)

    **Raises:**

    A `ValueError` or `TypeError` if `warmup_steps` is negative or not an integer, or if
    a value is not finite or has axes.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return compiled_line(
            as_count(count),
            *as_reals(self, "init_value", "peak_value"),
            *as_integers(self, "warmup_steps"),
            as_count(0),
        )


class WarmupStableDecay(AbstractSchedule):
    r"""Up along a straight line, constant for most of the time, and down at the end.

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M & W \le t < T - C \\
        E + (M - E)\, f\bigl((t - T + C) / C\bigr) & T - C \le t < T \\
        E & t \ge T
    \end{cases}$$

    `cooldown` selects $f$: $1 - x$, $1 - \sqrt x$ or $(1 + \cos \pi x) / 2$. From any
    state before the cool-down, training can continue with a larger $T$. With
    `"1-sqrt"`, which falls quickly at first, the paper finds lower losses than with a
    line.

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        schedule starts at the peak.
    - `total_steps`: $T \ge W + C$, an integer or a 0-d integer array: the total number
        of steps.
    - `cooldown_steps`: $C \ge 0$, an integer or a 0-d integer array, often a fifth of
        $T$. With $C = 0$ the value jumps to $E$ at $t = T$.
    - `end_value`: $E$, a number or a 0-d array. Defaults to 0.
    - `cooldown`: `"linear"` (the default), `"1-sqrt"` or `"cosine"`.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is negative or not an integer, if
    warm-up and cool-down together exceed `total_steps`, if there is no such `cooldown`,
    or if a value is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{hagele2024scaling,
            author = {H{\"a}gele, Alexander and Bakouch, Elie and Kosson, Atli and
                Ben Allal, Loubna and Von Werra, Leandro and Jaggi, Martin},
            title = {Scaling Laws and Compute-Optimal Training Beyond Fixed Training
                Durations},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
            eprint = {2405.18392},
            archivePrefix = {arXiv},
        }
        ```
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero
    total_steps: Steps
    cooldown_steps: StepsOrZero
    end_value: Finite = 0.0
    cooldown: Literal["linear", "1-sqrt", "cosine"] = eqx.field(
        static=True, default="linear"
    )

    def __check_init__(self) -> None:
        check_fields(self)
        steps = self.warmup_steps, self.cooldown_steps
        if not fits(steps, self.total_steps):
            raise ValueError(
                "WarmupStableDecay: `total_steps` must be at least `warmup_steps` and "
                f"`cooldown_steps` together, which are {steps[0]} and {steps[1]}, but "
                f"is {self.total_steps}. It includes both: pass the total number of "
                "steps."
            )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _warmup_stable_decay(
            as_count(count),
            *as_reals(self, "init_value", "peak_value", "end_value"),
            *as_integers(self, "warmup_steps", "total_steps", "cooldown_steps"),
            cooldown=self.cooldown,
        )


class InverseSquareRoot(AbstractSchedule):
    r"""Up along a straight line, then down with the inverse square root of time.

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M \sqrt{\dfrac{\tau}{\tau + t - W}} & t \ge W
    \end{cases}$$

    By default $\tau = W$, and the second part is $M \sqrt{W / t}$, as in the paper,
    where $M = (d\,W)^{-1/2}$ for a model of width $d$. The decay never ends; to end it,
    use [`eqopt.schedules.Join`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        schedule starts at the peak.
    - `timescale`: $\tau \ge 1$, an integer or a 0-d integer array: after $3 \tau$
        steps, half of the peak is left. Defaults to `None`, which is $\max(W, 1)$.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is out of its range or not an
    integer, or if a value is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{vaswani2017attention,
            author = {Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and
                Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N. and
                Kaiser, {\L}ukasz and Polosukhin, Illia},
            title = {Attention Is All You Need},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2017},
            eprint = {1706.03762},
            archivePrefix = {arXiv},
        }
        ```
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero
    timescale: Steps | None = None

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        timescale = "warmup_steps" if self.timescale is None else "timescale"
        return _inverse_square_root(
            as_count(count),
            *as_reals(self, "init_value", "peak_value"),
            *as_integers(self, "warmup_steps", timescale),
        )
