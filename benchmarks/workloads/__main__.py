"""Makes all runs that have no result yet, and writes the pages."""

import argparse
import pathlib
import sys
import time
from typing import Any, NamedTuple

from tests.methods import METHODS

from .. import machine
from ..pages import write_parts
from . import page, pictures
from .protocol import EVALUATIONS, FACTORS, SEEDS, Cell, loss_at_start
from .results import Failure, read, read_about, write_about
from .summary import Row, rows
from .sweep import WORKLOADS, Job, sweep
from .workload import Workload


DOCS = pathlib.Path(__file__).parents[2] / "docs"
IMAGES = DOCS / "images"
# The parts of each page. The first one helps to choose, the second one has all results.
PAGES = {
    DOCS / "which_optimizer.md": ("optimizers",),
    DOCS / "workloads.md": (
        *("workloads", "machine", "by workload", "finals", "failures", "published"),
    ),
}
SHOWN = ["SGD", "AdamW", "Lion", "Muon", "SOAP", "Prodigy", "ScheduleFreeAdamW"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads")
    add = parser.add_argument
    add("--only", action="append", choices=METHODS, metavar="OPTIMIZER")
    add("--again", action="store_true", help="also what has a result")
    add("--budget", type=float, default=1e6, help="minutes after which nothing starts")
    add("--processes", type=int, default=machine.cores() or 1, help="one for each core")
    add("--write", action="store_true", help="only write the pages and pictures")
    options = parser.parse_args(arguments)
    if options.write:
        write()
        return 0
    end = time.monotonic() + 60 * options.budget
    jobs = [
        Job(name, workload, end)
        for name in options.only or METHODS
        for workload in WORKLOADS
        if options.again or name not in read(workload)
    ]
    sweep(jobs, options.processes)
    about = read_about()
    starts = about.setdefault("starts", {})
    # Other results are shares of the losses at the start that are known.
    for name in WORKLOADS:
        if options.again or name not in starts:
            starts[name] = loss_at_start(WORKLOADS[name]())
    if len({job.name for job in jobs}) == len(METHODS):
        about = {"machine": machine.describe(), "starts": starts}
    for job in jobs:
        note_machine(about, job.name, machine.describe())
    write_about(about)
    return 0


def note_machine(about: dict[str, Any], name: str, where: dict[str, Any]) -> None:
    """Notes where an optimizer ran, unless all did there: the page says both."""
    main = about.setdefault("machine", where)
    kept = ("cpu", "jax", "python", "date")
    if any(main[key] != where[key] for key in kept):
        about.setdefault("later", {})[name] = {key: where[key] for key in kept}


class Found(NamedTuple):
    """All results that the pages show."""

    workloads: dict[str, Workload]
    results: dict[str, dict[str, Cell | Failure]]
    starts: dict[str, float]
    rows: list[Row]
    parts: dict[str, str]


def stored() -> Found:
    """The results that are stored."""
    workloads = {name: make() for name, make in WORKLOADS.items()}
    results = {name: read(name) for name in workloads}
    about = read_about()
    targets = {name: workload.target for name, workload in workloads.items()}
    starts = about["starts"]
    found = rows(results, starts, targets)
    parts = {
        "workloads": page.workloads_table(workloads, starts),
        "optimizers": page.table(found, results),
        "by workload": page.by_workload(found, workloads),
        "finals": page.finals(found, workloads),
        "failures": page.failures(found, workloads),
        "published": page.published(found, "language"),
        "machine": " ".join(
            [
                f"{machine.in_one_line(about['machine'])}. {_hours(results)}",
                *(
                    "{} ran on: {cpu}; jax {jax}, Python {python}; {date}.".format(
                        name, **where
                    )
                    for name, where in about.get("later", {}).items()
                ),
            ]
        ),
    }
    return Found(workloads, results, starts, found, parts)


def write() -> None:
    """Writes the pages and their pictures."""
    workloads, results, starts, found, parts = stored()
    for path, names in PAGES.items():
        write_parts(path, {name: parts[name] for name in names})
    pictures.save_steps(found, workloads, IMAGES / "which_steps.svg")
    pictures.save_rates(found, results, workloads, starts, IMAGES / "which_rates.svg")
    pictures.save_curves(SHOWN, results, workloads, IMAGES / "which_curves.svg")
    pictures.save_home(
        results["language"], found, workloads["language"], IMAGES / "home.svg"
    )


def _hours(results: dict) -> str:
    """The time of all runs, computed from the times of their steps."""
    runs = len(FACTORS) + 2 * len(SEEDS)
    cells = [
        (cell, name)
        for name, of in results.items()
        for cell in of.values()
        if isinstance(cell, Cell)
    ]
    seconds = sum(
        cell.compile_s + runs * WORKLOADS[name]().steps * cell.step_ms / 1e3
        for cell, name in cells
    )
    count = runs * len(cells)
    return (
        f"{count:,} runs, each with {EVALUATIONS} evaluations, took {seconds / 3600:.1f} "
        "hours of one core, compiling included."
    )


if __name__ == "__main__":
    sys.exit(main())
