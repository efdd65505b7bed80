"""Up along a straight line, then constant or down."""

import itertools
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_fields, check_integer
from .._errors import InputError
from .._jax_internals import is_traced
from .._types import Interval, RealScalarLike
from ._decay import SHAPES, between, exponential, half_wave, line
from ._dtypes import (
    Finite,
    FinitePositive,
    FiniteZeroOrMore,
    IntScalarLike,
    Steps,
    StepsOrZero,
    as_integer,
    as_real,
    is_integer,
    of_counts,
    real_dtype,
)
from ._schedule import (
    AbstractFormula,
    AbstractSchedule,
    ascend,
    check_order,
    one_after_the_other,
)


def _after_warmup(schedule, count, value) -> Float[Array, ""]:
    """`value`, but before it a line from `init_value` to `peak_value`."""
    steps = schedule.warmup_steps
    rising = line(count, schedule.init_value, schedule.peak_value, steps)
    return jnp.where(count < steps, rising, value)


class WarmupConstant(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        return line(count, self.init_value, self.peak_value, self.warmup_steps)


class WarmupCosineDecay(AbstractFormula):
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
        # The decay includes the warm-up, as in Optax.
        check_order(self, "warmup_steps", "decay_steps", strictly=True)

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        since_peak = jnp.maximum(count, self.warmup_steps) - self.warmup_steps
        steps = self.decay_steps - self.warmup_steps
        wave = half_wave(since_peak, steps, self.exponent)
        # Differs from Optax, which uses `alpha = end_value / peak_value`, or 0 if the
        # peak is 0, in which case it stays at 0. Here, the schedule ends at `end_value`
        # for any peak, and the derivative with respect to the peak is finite.
        decay = between(self.peak_value, self.end_value, wave)
        return _after_warmup(self, count, decay)


class WarmupExponentialDecay(AbstractFormula):
    r"""Up along a straight line, then down by the same factor per number of steps.

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M\, r^p, \quad p = \max(t - W - B, 0) / T & t \ge W
    \end{cases}$$

    The second part is [`eqopt.schedules.ExponentialDecay`][].

    **Arguments:**

    - `init_value`: $I$, a number or a 0-d array.
    - `peak_value`: $M$, a number or a 0-d array: the value at $t = W$.
    - `warmup_steps`: $W \ge 0$, an integer or a 0-d integer array. With $W = 0$ the
        schedule starts at the peak.
    - `transition_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `decay_rate`: $r > 0$, a number or a 0-d array.
    - `transition_begin`: $B \ge 0$, an integer or a 0-d integer array: the number of
        steps at the peak. Defaults to 0.
    - `staircase`: whether $p$ is rounded down. Defaults to `False`.
    - `end_value`: the smallest value of the second part if $r < 1$, otherwise the
        largest, a number or a 0-d array. Defaults to `None`, which means no bound.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps is out of its range or not an
    integer, if `decay_rate` is not positive, or if a value is not finite or has axes.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: StepsOrZero
    # Differs from Optax, where a rate of 0, or a transition of 0 steps, means no decay.
    transition_steps: Steps
    decay_rate: FinitePositive
    transition_begin: StepsOrZero = 0
    staircase: bool = eqx.field(static=True, default=False)
    end_value: Finite | None = None

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        since_peak = jnp.maximum(count, self.warmup_steps) - self.warmup_steps
        decay = exponential(self, since_peak, self.peak_value)
        return _after_warmup(self, count, decay)


class WarmupStableDecay(AbstractFormula):
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
        steps = self.warmup_steps, self.cooldown_steps, self.total_steps
        if any(map(is_traced, steps)):
            return
        warmup, cooldown, total = map(int, steps)
        if warmup + cooldown > total:
            raise InputError(
                "`total_steps` must be at least `warmup_steps` + `cooldown_steps`, "
                f"{warmup} + {cooldown}, but is {total}."
            )

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        dtype = self.peak_value.dtype
        begin = self.total_steps - self.cooldown_steps
        elapsed = jnp.clip(count, begin, self.total_steps) - begin
        steps = jnp.maximum(self.cooldown_steps, 1).astype(dtype)
        left = SHAPES[self.cooldown](elapsed.astype(dtype) / steps)
        # On how the end is determined, see `remaining`.
        left = jnp.where(count < self.total_steps, left, 0)
        # Exact at the beginning and at the end.
        decay = self.peak_value * left + self.end_value * (1 - left)
        return _after_warmup(self, count, decay)


class InverseSquareRoot(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        dtype = self.peak_value.dtype
        timescale = self.warmup_steps if self.timescale is None else self.timescale
        peak = jnp.maximum(self.warmup_steps, 0)
        elapsed = jnp.maximum(count, peak) - peak
        scale = jnp.maximum(timescale, 1).astype(dtype)
        decay = self.peak_value / jnp.sqrt(1 + elapsed.astype(dtype) / scale)
        return _after_warmup(self, count, decay)


def _beginnings(cycles: int | Iterable[Any]) -> tuple[Any, ...]:
    """Where each cycle but the first begins."""
    if isinstance(cycles, Iterable) and getattr(cycles, "ndim", 1) == 1:
        return tuple(cycles)
    number = check_integer("cycles", cycles, 1)
    return tuple(i / number for i in range(1, number))


# A number of steps if it is an integer, or a fraction.
_Amount: TypeAlias = Annotated[RealScalarLike, Interval(0)]


class WarmupDecay(AbstractSchedule):
    r"""Up along a straight line, constant, and down, by fractions of the run or by steps.

    In each cycle of $L$ steps, with $t$ counted from its beginning,

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M & W \le t < L - C \\
        \alpha M + (1 - \alpha) M\, f\bigl((t - L + C) / C\bigr) & L - C \le t < L
    \end{cases}$$

    with $I = 0$ and the warm-up of $W$ steps in the first cycle, $I = \alpha M$ and the
    re-warm-up in all others. After the last one, the value stays at $\alpha M$. `shape`
    selects $f$, as in [`eqopt.schedules.WarmupStableDecay`][].

    **An integer is a number of steps, and a float is a fraction**: `warmup=100` takes
    100 steps, `warmup=0.01` a hundredth of the run. Fractions are rounded to whole steps.
    If `total_steps` changes, everything given as a fraction changes with it.

    With the default peak of 1, this is a shape that all groups of parameters can share.
    Multiply it by the peak of each:

    !!! example

        ```python
        shape = eqopt.schedules.WarmupDecay(10_000, warmup=0.01, decay=0.2, alpha=0.1)
        opt = eqopt.Partition(
            {"matrices": eqopt.Muon(0.02 * shape), "rest": eqopt.AdamW(3e-4 * shape)},
            labels,
        )
        ```

    **Arguments:**

    - `total_steps`: an integer or a 0-d integer array of at least 1: the total number of
        steps, with all cycles.
    - `warmup`: the first warm-up, steps or a fraction of `total_steps`. Defaults to 0.
    - `decay`: $C$, steps or a fraction of each cycle. Defaults to `None`, which is the
        whole cycle after the warm-up.
    - `rewarmup`: the warm-up of all cycles but the first, steps or a fraction of each
        cycle. Defaults to 0, which jumps to the peak.
    - `cycles`: the number of cycles of equal length, or a list of where each cycle but
        the first begins, in steps or as fractions of `total_steps`. Defaults to 1.
    - `peak_value`: $M$, a number or a 0-d array. Defaults to 1.
    - `alpha`: $\alpha$, the value at the end of a cycle, relative to the peak. Defaults
        to 0.
    - `shape`: `"cosine"` (the default), `"linear"` or `"1-sqrt"`.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps or a fraction is out of its range,
    if warm-up and decay do not fit into a cycle, if the beginnings of cycles do not
    ascend, if there is no such `shape`, or if a value is not finite or has axes.
    """

    total_steps: Steps
    warmup: _Amount = 0
    decay: _Amount | None = None
    rewarmup: _Amount = 0
    cycles: tuple[RealScalarLike, ...] = eqx.field(converter=_beginnings, default=1)
    peak_value: Finite = eqx.field(kw_only=True, default=1.0)
    alpha: Finite = eqx.field(kw_only=True, default=0.0)
    shape: Literal["cosine", "linear", "1-sqrt"] = eqx.field(
        static=True, kw_only=True, default="cosine"
    )

    def __check_init__(self) -> None:
        check_fields(self)
        starts = self._starts()
        if not ascend(*starts, self.total_steps):
            raise InputError(
                "`cycles` must ascend, above 0 and below `total_steps`, "
                f"{self.total_steps}, but the cycles begin at steps {starts}. List where "
                "each cycle but the first begins, not the lengths."
            )
        for i, (length, warmup, decay) in enumerate(self._lengths()):
            _check_fits(self, i, length, warmup, decay)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        peak = as_real(self.peak_value)
        end = as_real(self.alpha) * peak
        cycles = tuple(
            WarmupStableDecay(
                end if i else jnp.zeros_like(peak),
                peak,
                warmup,
                length,
                _clipped(decay, length - warmup),
                end,
                self.shape,
            )
            for i, (length, warmup, decay) in enumerate(self._lengths())
        )
        return one_after_the_other(cycles, self._starts()[1:], count)

    def _starts(self) -> list[Any]:
        return [0, *(_steps(x, _whole(self.total_steps)) for x in self.cycles)]

    def _lengths(self) -> list[tuple[Any, Any, Any]]:
        """The lengths of each cycle, of its warm-up and of its decay."""
        lengths = []
        total = _whole(self.total_steps)
        ends = [*self._starts(), total]
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            length = end - start
            warmup = _steps(self.rewarmup, length) if i else _steps(self.warmup, total)
            rest = length - warmup
            decay = rest if self.decay is None else _steps(self.decay, length)
            lengths.append((length, warmup, decay))
        return lengths


def _check_fits(owner: WarmupDecay, i, length, warmup, decay) -> None:
    if any(map(is_traced, (length, warmup, decay))):
        return
    # Two fractions may both be rounded up.
    slack = not all(map(is_integer, (owner.warmup, owner.decay, owner.rewarmup)))
    length, warmup, decay = int(length), int(warmup), int(decay)
    if warmup > length or warmup + decay > length + slack:
        name = "rewarmup" if i else "warmup"
        raise InputError(
            f"`{name}` and `decay` must fit into a cycle, but are {warmup} and "
            f"{max(decay, 0)} steps in cycle {i}, which has {length}. Integers are "
            "steps, and floats are fractions."
        )


def _steps(amount: Any, whole: Any) -> Any:
    """A number of steps, or a fraction of the steps of a whole, rounded."""
    if is_integer(amount):
        return _whole(amount)
    if not isinstance(amount, Array) and not isinstance(whole, Array):
        return math.floor(float(amount) * whole + 0.5)
    dtype = real_dtype()
    steps = jnp.asarray(amount, dtype) * jnp.asarray(whole).astype(dtype)
    # Rounding has no derivative.
    return jnp.floor(steps + 0.5).astype(int)


def _whole(steps: Any) -> Any:
    """A number of steps as a Python integer, or in the dtype of the count."""
    return as_integer(steps) if isinstance(steps, Array) else int(steps)


def _clipped(decay: Any, room: Any) -> Any:
    if isinstance(decay, Array) or isinstance(room, Array):
        return jnp.clip(decay, 0, jnp.maximum(room, 0))
    return max(0, min(decay, room))
