"""Summarizes the results of each optimizer in a few numbers."""

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .protocol import EVALUATIONS, Cell
from .results import Failure


TRAINS = 0.9  # the share of AdamW's progress that counts as training

Results = Mapping[str, Mapping[str, Cell | Failure]]


class Mark(NamedTuple):
    """The summary of an optimizer on a workload.

    **Attributes:**

    - `to_target`: the share of the budget after which the mean over seeds first reaches
        the target; infinite if it never does.
    - `by_seed`: the same for each seed.
    - `final`: the mean of the final validation losses.
    - `low`, `high`: the lowest and the highest final validation loss.
    - `progress`: the position of `final` between the initial loss, 0, and the target, 1.
    - `robust`: the share of the nine learning rates with which training makes at least
        90 % of AdamW's progress.
    - `cost`: the time of a step, as a multiple of AdamW's.
    - `state_bytes`: bytes of state per parameter.
    - `at_edge`: whether the best learning rate is the first or the last one.
    """

    to_target: float
    by_seed: tuple[float, ...]
    final: float
    low: float
    high: float
    progress: float
    robust: float
    cost: float
    state_bytes: float
    at_edge: bool


def mark(cell: Cell, adamw: Cell, start: float, target: float) -> Mark:
    curves = np.array(cell.curves)
    ends = curves[:, -1]
    return Mark(
        _first(curves.mean(0), target),
        tuple(_first(curve, target) for curve in curves),
        float(ends.mean()),
        float(ends.min()),
        float(ends.max()),
        _progress(float(ends.mean()), start, target),
        statistics.mean(_progress(x, start, target) >= TRAINS for x in cell.finals),
        cell.step_ms / adamw.step_ms,
        cell.state_bytes,
        cell.best in (cell.rates[0], cell.rates[-1]),
    )


def _first(curve: np.ndarray, target: float) -> float:
    reached = np.flatnonzero(curve <= target)
    return (int(reached[0]) + 1) / EVALUATIONS if len(reached) else math.inf


def _progress(loss: float, start: float, target: float) -> float:
    """Progress in logarithms, because losses can fall by a factor of 10,000."""
    if not math.isfinite(loss):
        return -math.inf
    if loss <= 0:
        return math.inf
    return math.log(start / loss) / math.log(start / target)


class Row(NamedTuple):
    """The summary of an optimizer on all workloads.

    **Attributes:**

    - `marks`: the summary by workload, for the workloads on which it runs.
    - `failures`: the reasons for failure, by workload.
    - `relative`: the median over workloads of the steps to the target, as a multiple of
        AdamW's. Infinite if it does not reach the target on most workloads.
    - `relative_time`: the same for the time to the target.
    - `reached`: the number of workloads on which it reaches the target.
    - `robust`, `cost`, `state_bytes`: means over workloads; the geometric mean for times.
    """

    name: str
    marks: dict[str, Mark]
    failures: dict[str, str]
    relative: float
    relative_time: float
    reached: int
    robust: float
    cost: float
    state_bytes: float


def rows(
    results: Results, starts: Mapping[str, float], targets: Mapping[str, float]
) -> list[Row]:
    """A row for each optimizer with results on all workloads, the best ones first.

    Optimizers that reach the target on more workloads are better, then those that need
    fewer steps.
    """
    marks: dict[str, dict[str, Mark]] = {}
    failures: dict[str, dict[str, str]] = {}
    for workload, of in results.items():
        adamw = of["AdamW"]
        assert isinstance(adamw, Cell)
        for name, found in of.items():
            if isinstance(found, Failure):
                failures.setdefault(name, {})[workload] = found.failure
            else:
                at = starts[workload], targets[workload]
                marks.setdefault(name, {})[workload] = mark(found, adamw, *at)
    names = set.intersection(*(set(of) for of in results.values()))
    found = [
        _row(name, marks.get(name, {}), failures.get(name, {}), marks["AdamW"])
        for name in names
    ]
    return sorted(found, key=lambda row: (-row.reached, row.relative, row.name))


def _row(
    name: str,
    marks: dict[str, Mark],
    failures: dict[str, str],
    adamw: Mapping[str, Mark],
) -> Row:
    never = [math.inf] * len(failures)
    steps = {w: mark.to_target / adamw[w].to_target for w, mark in marks.items()}
    times = [steps[w] * mark.cost for w, mark in marks.items()]
    costs = [mark.cost for mark in marks.values()]
    mean = lambda numbers: float(np.mean(numbers)) if marks else math.nan
    return Row(
        name,
        marks,
        failures,
        statistics.median([*steps.values(), *never]),
        statistics.median([*times, *never]),
        sum(map(math.isfinite, steps.values())),
        mean([mark.robust for mark in marks.values()]) if marks else 0.0,
        statistics.geometric_mean(costs) if marks else math.nan,
        mean([mark.state_bytes for mark in marks.values()]),
    )
