"""One increase and one decrease, for large learning rates."""

from functools import partial
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_fields
from .._types import Interval, RealScalarLike
from ._dtypes import (
    Finite,
    FinitePositive,
    IntScalarLike,
    Steps,
    as_count,
    as_integer,
    as_integers,
    as_reals,
    compiled,
    of_counts,
)
from ._piecewise import interpolate
from ._schedule import AbstractSchedule
from ._validation import ascending_or_equal


@partial(compiled, static_argnames="interpolate_type")
def _one_cycle(
    count: Int[Array, ""],
    peak_value: Float[Array, ""],
    div_factor: Float[Array, ""],
    final_div_factor: Float[Array, ""],
    boundaries: tuple[Int[Array, ""], ...],
    *,
    interpolate_type: str,
) -> Float[Array, ""]:
    # Differs from Optax, which computes the values as products of one another: here,
    # the peak is exact, even if two phases end at the same count.
    init_value = peak_value / div_factor
    values = [init_value, peak_value, init_value, init_value / final_div_factor]
    if len(boundaries) == 2:
        del values[2]
    return interpolate(count, tuple(values), boundaries, interpolate_type)


@compiled
def _fraction_of_steps(
    fraction: Float[Array, ""], steps: Int[Array, ""]
) -> Int[Array, ""]:
    reached = jnp.floor(fraction * steps.astype(fraction.dtype)).astype(steps.dtype)
    return jnp.clip(reached, 0, steps)


def _boundary(
    owner: "LinearOneCycle | CosineOneCycle", name: str
) -> Int[Array | np.ndarray, ""]:
    """The count at a given fraction of all steps, rounded down."""
    fraction, steps = getattr(owner, name), owner.transition_steps
    if isinstance(fraction, int | float) and isinstance(steps, int):
        return as_integer(int(fraction * steps))  # in float64, as in Optax
    [fraction], [steps] = as_reals(owner, name), as_integers(owner, "transition_steps")
    return _fraction_of_steps(fraction, steps)


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
        return _one_cycle(
            as_count(count),
            *as_reals(self, "peak_value", "div_factor", "final_div_factor"),
            (_boundary(self, "pct_start"), *as_integers(self, "transition_steps")),
            interpolate_type="cosine",
        )


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
        if not ascending_or_equal(self.pct_start, self.pct_final):
            raise ValueError(
                "LinearOneCycle: `pct_final` must be at least `pct_start`, which is "
                f"{self.pct_start}, but is {self.pct_final}. It includes the "
                "increase: pass the fraction of the steps after which the value is "
                "back at its start."
            )

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        phases = (_boundary(self, "pct_start"), _boundary(self, "pct_final"))
        return _one_cycle(
            as_count(count),
            *as_reals(self, "peak_value", "div_factor", "final_div_factor"),
            (*phases, *as_integers(self, "transition_steps")),
            interpolate_type="linear",
        )
