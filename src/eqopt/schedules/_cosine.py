"""Down along half a wave of the cosine."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_fields
from ._dtypes import (
    Finite,
    FiniteZeroOrMore,
    IntScalarLike,
    Steps,
    StepsOrZero,
    as_count,
    as_integers,
    as_reals,
    compiled,
    of_counts,
)
from ._polynomial import between, line
from ._schedule import AbstractSchedule
from ._validation import ascending


def half_wave(
    count: Int[Array, ""],
    decay_steps: Int[Array, ""],
    exponent: Float[Array, ""],
    duration: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """From 1 at the count 0 to exactly 0 from `decay_steps` on.

    `duration` is the number of steps if it does not fit into an integer.
    """
    dtype = exponent.dtype
    if duration is None:
        duration = decay_steps.astype(dtype)
    elapsed = jnp.clip(count, 0, decay_steps).astype(dtype)
    # `1 + cos` loses digits near the end. `sin((1 - t / T) * pi / 2) ** 2` does not,
    # but then the result differs from Optax, and an exponent below 1 magnifies the
    # difference. The order of multiplication and division follows Optax for the same
    # reason.
    angle = jnp.pi * elapsed / jnp.maximum(duration, 1)
    wave = 0.5 * (1 + jnp.cos(angle))
    # Rounding must not make the base negative, nor leave a remainder at the end.
    wave = jnp.where(count < decay_steps, jnp.maximum(wave, 0), 0)
    # On the derivative at the base 0, see `polynomial`.
    return wave**exponent


@compiled
def _cosine_decay(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    alpha: Float[Array, ""],
    exponent: Float[Array, ""],
    decay_steps: Int[Array, ""],
) -> Float[Array, ""]:
    wave = half_wave(count, decay_steps, exponent)
    return init_value * ((1 - alpha) * wave + alpha)


@compiled
def _warmup_cosine_decay(
    count: Int[Array, ""],
    init_value: Float[Array, ""],
    peak_value: Float[Array, ""],
    end_value: Float[Array, ""],
    exponent: Float[Array, ""],
    warmup_steps: Int[Array, ""],
    decay_steps: Int[Array, ""],
) -> Float[Array, ""]:
    warmup = line(count, init_value, peak_value, warmup_steps, jnp.zeros_like(count))
    since_peak = jnp.maximum(count, warmup_steps) - warmup_steps
    wave = half_wave(since_peak, decay_steps - warmup_steps, exponent)
    # Differs from Optax, which uses `alpha = end_value / peak_value`, or 0 if the peak
    # is 0, in which case it stays at 0. Here, the schedule ends at `end_value` for any
    # peak, and the derivative with respect to the peak is finite.
    decay = between(peak_value, end_value, wave)
    return jnp.where(count < warmup_steps, warmup, decay)


class CosineDecay(AbstractSchedule):
    r"""Down along half a cosine wave: slowly at the beginning and at the end.

    $$s(t) = I \left((1 - \alpha) \left(
        \frac{1 + \cos(\pi \min(t, T) / T)}{2}
    \right)^p + \alpha\right)$$

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `decay_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `alpha`: $\alpha$, a number or a 0-d array: the last value as a fraction of the
        first. Defaults to 0.
    - `exponent`: $p \ge 0$, a number or a 0-d array. Defaults to 1. As $0^0 = 1$, the
        value stays at $I$ if $p = 0$.

    **Raises:**

    A `ValueError` or `TypeError` if `decay_steps` is not positive or not an integer, if
    `exponent` is negative, or if a value is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{loshchilov2017sgdr,
            author = {Loshchilov, Ilya and Hutter, Frank},
            title = {{SGDR}: Stochastic Gradient Descent with Warm Restarts},
            booktitle = {International Conference on Learning Representations},
            year = {2017},
            eprint = {1608.03983},
            archivePrefix = {arXiv},
        }
        ```
    """

    init_value: Finite
    decay_steps: Steps
    alpha: Finite = 0.0
    exponent: FiniteZeroOrMore = 1.0

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _cosine_decay(
            as_count(count),
            *as_reals(self, "init_value", "alpha", "exponent"),
            *as_integers(self, "decay_steps"),
        )


class WarmupCosineDecay(AbstractSchedule):
    r"""Up along a straight line, then down along half a cosine wave.

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        E + (M - E) \left(
            \dfrac{1 + \cos(\pi\, (t - W) / (T - W))}{2}
        \right)^p & W \le t < T \\
        E & t \ge T
    \end{cases}$$

    For the cosine and the paper, see [`eqopt.schedules.CosineDecay`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array: the value at $t = W$.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        schedule starts at the peak.
    - `decay_steps`: $T > W$, an integer or a 0-d integer array: the total number of
        steps, including the warm-up.
    - `end_value`: $E$, a number or a 0-d array. Defaults to 0.
    - `exponent`: $p \ge 0$, a number or a 0-d array. Defaults to 1. As $0^0 = 1$, the
        value stays at $M$ if $p = 0$.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is negative or not an integer, if
    `decay_steps` is not more than `warmup_steps`, if `exponent` is negative, or if a
    value is not finite or has axes.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero
    decay_steps: Steps
    end_value: Finite = 0.0
    exponent: FiniteZeroOrMore = 1.0

    def __check_init__(self) -> None:
        check_fields(self)
        if not ascending(self.warmup_steps, self.decay_steps):
            raise ValueError(
                "WarmupCosineDecay: `decay_steps` must be more than `warmup_steps`, "
                f"which is {self.warmup_steps}, but is {self.decay_steps}. It "
                "includes the warm-up: pass the total number of steps."
            )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _warmup_cosine_decay(
            as_count(count),
            *as_reals(self, "init_value", "peak_value", "end_value", "exponent"),
            *as_integers(self, "warmup_steps", "decay_steps"),
        )
