"""Timing two contestants fairly on a machine that is never quite idle."""

import gc
from collections.abc import Callable
from statistics import fmean, median
from typing import NamedTuple

from .contestants import Pair


class Timing(NamedTuple):
    """Seconds for one call. Noise only ever adds, so `best` is nearest to the truth."""

    best: float
    median: float


def race(
    samples: Pair[Callable[[], list[float]]], rounds: int, period: int = 1
) -> Pair[Timing]:
    """Times both contestants, in turns, so that what slows one down slows the other.

    **Arguments:**

    - `samples`: what each does in one round: some calls, and the seconds of each.
    - `rounds`: how many rounds.
    - `period`: after how many calls the work repeats; a round makes a multiple of it.
        Each place in the period is judged by itself, then the mean is taken over them.
    """
    seconds: Pair[list[float]] = Pair([], [])
    for i in range(rounds):
        # Who starts alternates, for neither is always to follow the other's garbage.
        for mine, sample in list(zip(seconds, samples, strict=True))[:: (-1) ** i]:
            gc.collect()
            mine += sample()
    return seconds.map(lambda s: _summary([s[i::period] for i in range(period)]))


def _summary(places: list[list[float]]) -> Timing:
    return Timing(fmean(map(min, places)), fmean(map(median, places)))
