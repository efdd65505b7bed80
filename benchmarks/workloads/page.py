"""Makes the tables of the page from the results."""

import math
from collections.abc import Mapping

from .protocol import SCHEDULES
from .summary import Row
from .workload import Workload


def workloads_table(
    workloads: Mapping[str, Workload], starts: Mapping[str, float]
) -> str:
    lines = [
        "| Workload | What it is | Budget | Loss at the start | Target |",
        "|:--|:--|--:|--:|--:|",
    ]
    for name, workload in workloads.items():
        batch = "all" if workload.batch is None else f"{workload.batch}"
        lines.append(
            f"| **{workload.title}** | {workload.what}. | {workload.steps} steps of "
            f"{batch} | {starts[name]:.3g} | {workload.target:.4g} |"
        )
    return "\n".join(lines)


def table(rows: list[Row], workloads: Mapping[str, Workload]) -> str:
    titles = [workload.title for workload in workloads.values()]
    lines = [
        f"| Optimizer | Steps | Time | Reached | {' | '.join(titles)} | "
        "Rates that train | Time of a step | State |",
        "|:--" + "|--:" * (len(titles) + 6) + "|",
    ]
    for row in rows:
        all_of_them = "no | no"
        if math.isfinite(row.relative):
            all_of_them = f"**{row.relative:.2f}** | {row.relative_time:.2f}"
        schedule = "°" if row.name in SCHEDULES else ""
        name = f"[`{row.name}`][eqopt.{row.name}]{schedule}"
        cells = " | ".join(_cell(row, workload) for workload in workloads)
        costs = f"{100 * row.robust:.0f} % | {row.cost:.2f} | {row.state_bytes:.1f}"
        lines.append(f"| {name} | {all_of_them} | {row.reached} | {cells} | {costs} |")
    return "\n".join(lines)


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
    lines = [
        f"| Optimizer | {' | '.join(titles)} |",
        "|:--" + "|--:" * len(titles) + "|",
    ]
    for row in rows:
        marks = [row.marks.get(workload) for workload in workloads]
        ends = [(m.final, (m.high - m.low) / 2) if m else None for m in marks]
        cells = [f"{end[0]:.3g} ± {end[1]:.1g}" if end else "" for end in ends]
        lines.append(f"| [`{row.name}`][eqopt.{row.name}] | {' | '.join(cells)} |")
    return "\n".join(lines)


def failures(rows: list[Row], workloads: Mapping[str, Workload]) -> str:
    """The optimizers that do not run, and why."""
    lines = [
        f"- `{row.name}` on {workloads[name].title}: {why}"
        for row in rows
        for name, why in row.failures.items()
    ]
    return "\n".join(lines) if lines else "Every optimizer runs on every workload."


# Steps of a small GPT-2 to a loss of 3.28, from the README of the public benchmark. If a
# row there adds something to this method, it is named.
PUBLISHED = {
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
    lines = [
        "| Optimizer | Published: steps | relative to Adam | Here: relative to Adam |",
        "|:--|--:|--:|--:|",
    ]
    for name, (steps, besides) in PUBLISHED.items():
        if not {name, "Adam"} <= marks.keys():
            continue
        there = steps / PUBLISHED["Adam"][0]
        ratio = marks[name].to_target / marks["Adam"].to_target
        here = f"{ratio:.2f}" if math.isfinite(ratio) else "not reached"
        also = f", {besides}" if besides else ""
        lines.append(f"| {name}{also} | {steps} | {there:.2f} | {here} |")
    return "\n".join(lines)
