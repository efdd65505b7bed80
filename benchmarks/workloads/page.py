"""Makes the tables of the page from the results."""

import math
import statistics
from collections.abc import Mapping

from ..pages import markdown
from .protocol import SCHEDULES, Cell
from .results import Failure
from .summary import Results, Row
from .workload import Workload


def workloads_table(
    workloads: Mapping[str, Workload], starts: Mapping[str, float]
) -> str:
    head = ["Workload", "What it is", "Budget: steps x batch", "Loss at the start"]
    lines = []
    for name, workload in workloads.items():
        batch = "all" if workload.batch is None else f"{workload.batch}"
        about = [f"**{workload.title}**", f"{workload.what}."]
        numbers = [f"{starts[name]:.3g}", f"{workload.target:.4g}"]
        lines.append([*about, f"{workload.steps} x {batch}", *numbers])
    return markdown([*head, "Target"], lines, texts=2)


def table(rows: list[Row], results: Results) -> str:
    """A line for each optimizer: what it reaches on all workloads, and what it costs."""
    head = ["Optimizer", "Reached", "Steps", "Time", "Best rates", "Rates that train"]
    lines = []
    for row in rows:
        needed = ["no", "no"]
        if math.isfinite(row.relative):
            needed = [f"{row.relative:.2f}", f"{row.relative_time:.2f}"]
        costs = [f"{100 * row.robust:.0f} %", f"{row.cost:.2f}"]
        costs.append(f"{row.state_bytes:.1f}")
        rates = _best_rates([of.get(row.name) for of in results.values()])
        lines.append([_name(row), f"**{row.reached}**", *needed, rates, *costs])
    return markdown([*head, "Time of a step", "State"], lines)


def _best_rates(cells: list[Cell | Failure | None]) -> str:
    """The median of the best learning rates of all workloads, and their range."""
    rates = sorted(cell.best for cell in cells if isinstance(cell, Cell))
    if not rates:
        return ""
    short = lambda rate: f"{float(f'{rate:.2g}'):g}".replace("e-0", "e-")
    low, middle, high = map(short, (rates[0], statistics.median(rates), rates[-1]))
    return middle if low == high else f"{middle} ({low} to {high})"


def by_workload(rows: list[Row], workloads: Mapping[str, Workload]) -> str:
    """A line for each optimizer, with its budget to the target of each workload."""
    titles = [workload.title for workload in workloads.values()]
    cells = lambda row: (_cell(row, workload) for workload in workloads)
    return markdown(["Optimizer", *titles], [[_name(row), *cells(row)] for row in rows])


def _name(row: Row) -> str:
    schedule = "°" if row.name in SCHEDULES else ""
    return f"[`{row.name}`][eqopt.{row.name}]{schedule}"


def _cell(row: Row, workload: str) -> str:
    """The share of the budget needed to reach the target, or else the progress."""
    if workload not in row.marks:
        return "fails"
    mark = row.marks[workload]
    edge = "*" if mark.at_edge else ""
    if math.isfinite(mark.to_target):
        return f"{100 * mark.to_target:.0f} %{edge}"
    if mark.progress == -math.inf:
        return f"diverges{edge}"
    return f"({mark.final:.3g}){edge}"


def finals(rows: list[Row], workloads: Mapping[str, Workload]) -> str:
    """The final losses: means over seeds, and half of the range."""
    titles = [workload.title for workload in workloads.values()]
    lines = []
    for row in rows:
        marks = [row.marks.get(workload) for workload in workloads]
        ends = [(m.final, (m.high - m.low) / 2) if m else None for m in marks]
        cells = [f"{end[0]:.3g} ± {end[1]:.1g}" if end else "" for end in ends]
        lines.append([f"[`{row.name}`][eqopt.{row.name}]", *cells])
    return markdown(["Optimizer", *titles], lines)


def failures(rows: list[Row], workloads: Mapping[str, Workload]) -> str:
    """The optimizers that do not run on a workload, and why."""
    lines = [
        f"- `{row.name}` on {workloads[name].title}: {why}"
        for row in rows
        for name, why in row.failures.items()
    ]
    return "\n".join(
        ["These runs failed:", "", *lines] if lines else ["No run failed."]
    )


# Steps of a small GPT-2 to a loss of 3.28, from the README of the public benchmark. If a
# row there adds something to this method, it is named.
PUBLISHED = {
    "Muown": (3075, "with a schedule of the norms"),
    "SOAP": (3125, "on the hyperball"),
    "Aurora": (3175, "with Contra-Muon"),
    "Muon": (3250, ""),
    "NorMuon": (3250, ""),
    "PSGDKron": (3375, "on the hyperball"),
    "Shampoo": (4100, ""),
    "Adam": (5625, "undertuned according to the README"),
}


def published(rows: list[Row], workload: str) -> str:
    """The public benchmark, next to the measured steps on `workload`."""
    marks = {row.name: row.marks[workload] for row in rows if workload in row.marks}
    head = ["Optimizer", "Published: steps", "relative to Adam"]
    lines = []
    for name, (steps, besides) in PUBLISHED.items():
        if not {name, "Adam"} <= marks.keys():
            continue
        there = steps / PUBLISHED["Adam"][0]
        ratio = marks[name].to_target / marks["Adam"].to_target
        here = f"{ratio:.2f}" if math.isfinite(ratio) else "not reached"
        also = f", {besides}" if besides else ""
        lines.append([f"{name}{also}", str(steps), f"{there:.2f}", here])
    return markdown([*head, "Here: relative to Adam"], lines)
