"""Measures in several processes: in one, the same program may take longer.

Where arrays lie in memory, for one, is decided once for each process.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .cases import Case
from .measures import Settings
from .report import Row


def odd(text: str) -> int:
    """An odd number of processes, so that one of them has the middle ratio."""
    if not text.isdecimal() or int(text) % 2 == 0:
        raise argparse.ArgumentTypeError(f"must be odd, but is {text!r}")
    return int(text)


def in_each(
    command: Sequence[str], processes: int, output: pathlib.Path
) -> list[list[dict[str, Any]]]:
    """The rows that `python -m` with `command` writes, for each of several processes.

    They are also in files next to `output`.
    """
    results = []
    for i in range(1, processes + 1):
        print(f"Process {i} of {processes}", file=sys.stderr, flush=True)
        path = output.with_suffix(f".{i}.json")
        subprocess.run(
            [sys.executable, "-m", *command, f"--output={path}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        results.append(json.loads(path.read_text())["rows"])
    return results


def in_processes(
    cases: Sequence[Case], settings: Settings, processes: int, output: pathlib.Path
) -> list[Row]:
    """The rows of all cases. Each one is from the process with the middle ratio."""
    command = ["benchmarks"]
    command += [f"--{name}={value}" for name, value in settings._asdict().items()]
    command += [f"--only={case.name}" for case in cases]
    runs = [_by_case(rows) for rows in in_each(command, processes, output)]
    return [row for case in cases for row in _middle([run[case.name] for run in runs])]


def _by_case(rows: list[dict[str, Any]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["name"].removesuffix("/memory"), []).append(Row(**row))
    return found


def _middle(runs: list[list[Row]]) -> list[Row]:
    ratios = [rows[0].eqopt / rows[0].other for rows in runs]
    middle = sorted(ratios)[len(ratios) // 2]
    time, *memory = runs[ratios.index(middle)]
    return [time._replace(lowest=min(ratios), highest=max(ratios)), *memory]
