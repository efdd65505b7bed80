"""Measures a case in several processes, which may differ more than the two libraries do.

Where arrays lie in memory, for one, is decided once for each process.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from .cases import Case
from .measures import Settings
from .report import Row


ROOT = pathlib.Path(__file__).parents[1]


def middle(case: Case, settings: Settings, processes: int) -> list[Row]:
    """The rows of the process whose ratio is the middle one, with the range of ratios.

    It prints a dot for each process.
    """
    runs = [_in_a_process(case, settings) for _ in range(processes)]
    runs.sort(key=lambda rows: rows[0].ratio or 0)
    time, *memory = runs[processes // 2]
    lowest, highest = runs[0][0].ratio, runs[-1][0].ratio
    return [time._replace(lowest=lowest, highest=highest), *memory]


def _in_a_process(case: Case, settings: Settings) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "benchmarks.json"
        options = {"only": case.name, "output": output, **settings._asdict()}
        options = [f"--{name}={value}" for name, value in options.items()]
        subprocess.run(
            [sys.executable, "-m", "benchmarks", *options],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        rows = [Row(**row) for row in json.loads(output.read_text())["rows"]]
    print(".", end="", file=sys.stderr, flush=True)
    return rows
