"""Results on disk, and what follows from them."""

import json
import math
import pathlib
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..scaling.collectives import Collective
from .methods import DATA_PARALLEL, NAMES, TRAINED, ZERO1
from .sent import Messages
from .training import SEEDS, Run, steps_to


FILE = pathlib.Path(__file__).parent / "results.json"
TARGET = 2.2


class Results(NamedTuple):
    """Everything that was run, and what was counted for the small model."""

    machine: dict[str, Any]
    runs: list[Run]
    counted: dict[str, Messages]

    def best(self, method: str) -> list[Run]:
        """The runs of a method with its best rate, by seed."""
        own = [run for run in self.runs if run.method == method]
        rate = next(run.rate for run in own if run.seed == SEEDS[-1])
        return sorted((r for r in own if r.rate == rate), key=lambda r: r.seed)


class Steps(NamedTuple):
    """How a method trains the small model; means of all seeds.

    **Attributes:**

    - `rate`: its best learning rate.
    - `needed`: the steps to the target, and the fewest and most of a seed.
    - `relative`: these steps, divided by the steps of data parallelism.
    - `final`: the final loss.
    """

    rate: float
    needed: float
    fewest: float
    most: float
    relative: float
    final: float


def steps(results: Results) -> dict[str, Steps]:
    """By method. The steps of ZeRO-1 are the ones of data parallelism."""
    found: dict[str, Steps] = {}
    for name in TRAINED:
        runs = results.best(name)
        each = [steps_to(run.losses, TARGET) or math.inf for run in runs]
        needed = statistics.mean(each)
        base = found[DATA_PARALLEL].needed if found else needed
        final = statistics.mean(run.losses[-1] for run in runs)
        rest = min(each), max(each), needed / base, final
        found[name] = Steps(runs[0].rate, needed, *rest)
    found[ZERO1] = found[DATA_PARALLEL]
    return {name: found[name] for name in NAMES}


def read(file: pathlib.Path = FILE) -> Results:
    found = json.loads(file.read_text())
    return Results(
        found["machine"],
        [Run(*run) for run in found["runs"]],
        {
            name: Messages([Collective(*one) for one in sent], every)
            for name, (sent, every) in found["counted"].items()
        },
    )


def write(results: Results, file: pathlib.Path = FILE) -> None:
    def lines(rows: Iterable[str]) -> str:
        return ",\n".join(rows)

    text = json.dumps
    counted = (f"{text(k)}: {text(v)}" for k, v in results.counted.items())
    file.write_text(
        f'{{"machine": {text(results.machine)},\n'
        f'"counted": {{\n{lines(counted)}\n}},\n'
        f'"runs": [\n{lines(text(run) for run in results.runs)}\n]}}\n'
    )
