"""Up and down, or down again and again."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_fields
from .._errors import InputError
from .._types import Interval, RealScalarLike
from ._decay import between, half_wave
from ._dtypes import (
    Finite,
    FinitePositive,
    IntScalarLike,
    Steps,
    StepsOrZero,
    as_count,
    as_integer,
    as_real,
    compiled,
    later,
    of_counts,
)
from ._piecewise import interpolate
from ._schedule import (
    AbstractFormula,
    AbstractSchedule,
    check_order,
    one_after_the_other,
)
from ._warmup import WarmupCosineDecay


class Cyclic(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        dtype = self.gamma.dtype
        down = self.step_size_up if self.step_size_down is None else self.step_size_down
        up, down = jnp.maximum(self.step_size_up, 1), jnp.maximum(down, 0)
        # The sum may exceed all counts and overflow the dtype. In that case, the first
        # cycle never ends.
        largest = jnp.iinfo(count.dtype).max
        is_endless = down > largest - up
        period = jnp.where(is_endless, largest, up + down)
        phase = jnp.where(is_endless, count, count % period)
        cycles = jnp.where(is_endless, 0, count // period)
        rising = phase.astype(dtype) / up.astype(dtype)
        falling = (up - phase + down).astype(dtype) / jnp.maximum(down, 1).astype(dtype)
        part = jnp.where(phase <= up, rising, falling)
        if self.mode == "triangular2":
            part = part * jnp.exp2(-cycles.astype(dtype))
        elif self.mode == "exp_range":
            part = part * self.gamma ** count.astype(dtype)
        return between(self.peak_value, self.init_value, part)


def _cycle(count, decay_steps, t_mult, dtype):
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


class CosineRestarts(AbstractFormula):
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

    def _formula(self: Any, count: Int[Array, ""]) -> Float[Array, ""]:
        dtype = self.init_value.dtype
        elapsed, length, duration = _cycle(count, self.decay_steps, self.t_mult, dtype)
        wave = half_wave(elapsed, length, jnp.ones((), dtype), duration)
        return between(self.init_value, self.end_value, wave)


def _as_cycles(given: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(WarmupCosineDecay(**x) if isinstance(x, Mapping) else x for x in given)


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

    A `ValueError` or `TypeError` if the arguments of a cycle are not valid.

    For the paper, see [`eqopt.schedules.CosineDecay`][].
    """

    cosine_kwargs: tuple[WarmupCosineDecay, ...] = eqx.field(converter=_as_cycles)

    def __check_init__(self) -> None:
        is_cycle = lambda x: isinstance(x, WarmupCosineDecay)
        if not self.cosine_kwargs or not all(map(is_cycle, self.cosine_kwargs)):
            raise InputError(
                "`cosine_kwargs` must have a dictionary or a `WarmupCosineDecay` for at "
                f"least one cycle, but is {self.cosine_kwargs}. For other schedules, use "
                "`Join`."
            )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        boundaries = accumulate((x.decay_steps for x in self.cosine_kwargs[:-1]), later)
        return one_after_the_other(self.cosine_kwargs, boundaries, count)


@partial(compiled, static_argnames="kind")
def _one_cycle(count, peak_value, div_factor, final_div_factor, boundaries, *, kind):
    # Differs from Optax, which computes the values as products of one another: here,
    # the peak is exact, even if two phases end at the same count.
    init_value = peak_value / div_factor
    values = [init_value, peak_value, init_value, init_value / final_div_factor]
    if len(boundaries) == 2:
        del values[2]
    return interpolate(count, tuple(values), boundaries, kind)


@compiled
def _fraction_of_steps(fraction, steps) -> Int[Array, ""]:
    reached = jnp.floor(fraction * steps.astype(fraction.dtype)).astype(steps.dtype)
    return jnp.clip(reached, 0, steps)


def _boundary(owner: "LinearOneCycle | CosineOneCycle", name: str):
    """The count at a given fraction of all steps, rounded down."""
    fraction, steps = getattr(owner, name), owner.transition_steps
    if isinstance(fraction, int | float) and isinstance(steps, int):
        return as_integer(int(fraction * steps))  # in float64, as in Optax
    return _fraction_of_steps(as_real(fraction), as_integer(steps))


def _one_cycle_at(owner, count, fractions, kind) -> Float[Array, ""]:
    names = "peak_value", "div_factor", "final_div_factor"
    numbers = (as_real(getattr(owner, name)) for name in names)
    ends = *(_boundary(owner, name) for name in fractions), owner.transition_steps
    boundaries = tuple(map(as_integer, ends))
    return _one_cycle(as_count(count), *numbers, boundaries, kind=kind)


class CosineOneCycle(AbstractSchedule):
    r"""Up along half a cosine wave, then down further along another one.

    The value goes from $M / d$ at the count 0 to $M$ at $\lfloor p\,T \rfloor$, then to
    $M / (d f)$ at $T$, where it stays. The curves are cosines, as in
    [`eqopt.schedules.PiecewiseInterpolate`][].

    `torch.optim.lr_scheduler.OneCycleLR` is one step faster: its peak is at the count
    $p\,T - 1$, which need not be an integer, and its end at $T - 1$.

    **Arguments:**

    - `transition_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `peak_value`: $M$, a number or a 0-d array.
    - `pct_start`: $p \in [0, 1]$, a number or a 0-d array: the fraction (not the
        percentage) of the steps on the way up. Defaults to 0.3. With $p\,T < 1$, it
        starts at the peak.
    - `div_factor`: $d > 0$, a number or a 0-d array. Defaults to 25.
    - `final_div_factor`: $f > 0$, a number or a 0-d array. Defaults to 10,000.

    **Raises:**

    A `ValueError` or `TypeError` if `transition_steps` is not positive or not an
    integer, if `pct_start` is out of its range, if a factor is not positive, or if a
    value is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{smith2019superconvergence,
            author = {Smith, Leslie N. and Topin, Nicholay},
            title = {Super-Convergence: Very Fast Training of Neural Networks Using Large
                Learning Rates},
            booktitle = {Artificial Intelligence and Machine Learning for Multi-Domain
                Operations Applications},
            year = {2019},
            eprint = {1708.07120},
            archivePrefix = {arXiv},
        }
        ```
    """

    transition_steps: Steps
    peak_value: Finite
    pct_start: Annotated[RealScalarLike, Interval(0, 1)] = 0.3
    div_factor: FinitePositive = 25.0
    final_div_factor: FinitePositive = 1e4

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _one_cycle_at(self, count, ["pct_start"], "cosine")


class LinearOneCycle(AbstractSchedule):
    r"""Up and down along straight lines, then further down.

    The value goes from $M / d$ at the count 0 to $M$ at $\lfloor p\,T \rfloor$, back to
    $M / d$ at $\lfloor q\,T \rfloor$, then to $M / (d f)$ at $T$, where it stays.

    For the paper, see [`eqopt.schedules.CosineOneCycle`][]. In torch it is `OneCycleLR`
    with `three_phase=True` and `anneal_strategy="linear"`, in which $q$ is $2p$ and
    everything is one step faster.

    **Arguments:**

    - `transition_steps`: $T \ge 1$, an integer or a 0-d integer array.
    - `peak_value`: $M$, a number or a 0-d array.
    - `pct_start`: $p \in [0, 1]$, a number or a 0-d array: the fraction (not the
        percentage) of the steps on the way up. Defaults to 0.3. With $p\,T < 1$, it
        starts at the peak.
    - `pct_final`: $q \in [p, 1]$, a number or a 0-d array: the fraction of the steps up
        and down. Defaults to 0.85. With $q\,T < 1$ it starts at $M / d$ and has no
        peak.
    - `div_factor`: $d > 0$, a number or a 0-d array. Defaults to 25.
    - `final_div_factor`: $f > 0$, a number or a 0-d array. Defaults to 10,000.

    **Raises:**

    A `ValueError` or `TypeError` if `transition_steps` is not positive or not an
    integer, if a fraction is out of its range, if a factor is not positive, or if a
    value is not finite or has axes.
    """

    transition_steps: Steps
    peak_value: Finite
    pct_start: Annotated[RealScalarLike, Interval(0, 1)] = 0.3
    pct_final: Annotated[RealScalarLike, Interval(0, 1)] = 0.85
    div_factor: FinitePositive = 25.0
    final_div_factor: FinitePositive = 1e4

    def __check_init__(self) -> None:
        check_fields(self)
        check_order(self, "pct_start", "pct_final")

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        return _one_cycle_at(self, count, ["pct_start", "pct_final"], "linear")
