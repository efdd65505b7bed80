"""Measures cases in several processes: in one, the same program may take longer.

Where arrays lie in memory, for one, is decided once for each process.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from .cases import Case
from .measures import Settings
from .report import Row


def in_processes(
    cases: Sequence[Case], settings: Settings, processes: int, output: pathlib.Path
) -> list[Row]:
    """The rows of all cases. Each one is from the process with the middle ratio.

    What each process measured is in a file next to `output`.
    """
    runs = []
    for i in range(1, processes + 1):
        print(f"Process {i} of {processes}", file=sys.stderr, flush=True)
        runs.append(_in_a_process(cases, settings, output.with_suffix(f".{i}.json")))
    return [row for case in cases for row in _middle([run[case.name] for run in runs])]


def _middle(runs: list[list[Row]]) -> list[Row]:
    ratios = [rows[0].eqopt / rows[0].other for rows in runs]
    middle = sorted(ratios)[len(ratios) // 2]
    time, *memory = runs[ratios.index(middle)]
    return [time._replace(lowest=min(ratios), highest=max(ratios)), *memory]


def _in_a_process(
    cases: Sequence[Case], settings: Settings, output: pathlib.Path
) -> dict[str, list[Row]]:
    """The rows of each case, by its name."""
    options = [f"--{name}={value}" for name, value in settings._asdict().items()]
    options += [f"--only={case.name}" for case in cases]
    command = [sys.executable, "-m", "benchmarks", *options, f"--output={output}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, list[Row]] = {}
    for row in json.loads(output.read_text())["rows"]:
        found.setdefault(row["name"].removesuffix("/memory"), []).append(Row(**row))
    return found
