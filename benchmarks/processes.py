"""Measures cases in several processes, which may differ more than the two libraries do.

Where arrays lie in memory, for one, is decided once for each process.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from .cases import Case
from .measures import Settings
from .report import Row


ROOT = pathlib.Path(__file__).parents[1]


def in_processes(
    cases: Sequence[Case], settings: Settings, processes: int
) -> list[Row]:
    """The rows of all cases. Each one is from the process with the middle ratio."""
    runs = []
    for i in range(1, processes + 1):
        print(f"Process {i} of {processes}", file=sys.stderr, flush=True)
        runs.append(_in_a_process(cases, settings))
    return [row for case in cases for row in _middle([run[case.name] for run in runs])]


def _middle(runs: list[list[Row]]) -> list[Row]:
    runs = sorted(runs, key=lambda rows: rows[0].ratio or 0)
    time, *memory = runs[len(runs) // 2]
    lowest, highest = runs[0][0].ratio, runs[-1][0].ratio
    return [time._replace(lowest=lowest, highest=highest), *memory]


def _in_a_process(cases: Sequence[Case], settings: Settings) -> dict[str, list[Row]]:
    """The rows of each case, by its name."""
    options = [f"--{name}={value}" for name, value in settings._asdict().items()]
    options += [f"--only={case.name}" for case in cases]
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "benchmarks.json"
        command = [sys.executable, "-m", "benchmarks", *options, f"--output={output}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        rows = [Row(**row) for row in json.loads(output.read_text())["rows"]]
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name.removesuffix("/memory"), []).append(row)
    return found
