"""Times two contestants fairly on a machine that is never quite idle."""

import gc
import sys
from collections.abc import Callable
from statistics import fmean, median
from typing import NamedTuple

from .contestants import Pair


class Timing(NamedTuple):
    """Seconds for one call. Noise only adds time, so `best` is the most accurate."""

    best: float
    median: float


def race(
    samples: Pair[Callable[[], list[float]]], rounds: int, period: int = 1
) -> Pair[Timing]:
    """Times both contestants in turns, so that other load slows down both equally.

    It prints a dot for each round.

    **Arguments:**

    - `samples`: for each contestant, a function that runs one round of calls and returns
        the seconds of each call.
    - `rounds`: the number of rounds.
    - `period`: the number of calls after which the work repeats. The calls of a round are
        a multiple of it. Each position in the period is evaluated separately, and the
        result is the mean over the positions.
    """
    seconds: Pair[list[float]] = Pair([], [])
    for i in range(rounds):
        # The order alternates, so that neither always runs after the garbage of the
        # other.
        for mine, sample in list(zip(seconds, samples, strict=True))[:: (-1) ** i]:
            gc.collect()
            mine += sample()
        print(".", end="", file=sys.stderr, flush=True)
    return seconds.map(lambda s: _summary([s[i::period] for i in range(period)]))


def _summary(places: list[list[float]]) -> Timing:
    return Timing(fmean(map(min, places)), fmean(map(median, places)))
