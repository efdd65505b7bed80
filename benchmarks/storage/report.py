"""The table of all ways of storage, and the picture of their training."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ..pages import markdown
from .runs import Cost, Run
from .ways import Way


class Row(NamedTuple):
    way: Way
    cost: Cost
    final: float


def middle(rows: Sequence[Row]) -> Row:
    """The row with the middle time, of what each process measured for the same way."""
    first, *_, last = ordered = sorted(rows, key=lambda row: row.cost.time)
    row = ordered[len(ordered) // 2]
    ends = {"lowest": first.cost.time, "highest": last.cost.time}
    return row._replace(cost=row.cost._replace(**ends))


def record(row: Row) -> dict[str, Any]:
    """The row as an object for JSON."""
    return {"way": row.way._asdict(), "cost": row.cost._asdict(), "final": row.final}


def restored(record: dict[str, Any]) -> Row:
    """The row of an object that `record` returned."""
    return Row(Way(**record["way"]), Cost(**record["cost"]), record["final"])


def table(rows: list[Row]) -> str:
    head = ["Parameters", "State", "Bytes: parameters", "state", "sum", "Temporary"]
    lines = []
    for way, cost, final in rows:
        sizes = cost.params, cost.state, cost.params + cost.state, cost.temporary
        several = cost.lowest is not None
        ends = f"{cost.lowest:.1f} to {cost.highest:.1f}" if several else ""
        time = [f"{cost.time:.1f}", ends, f"{final:.3f}"]
        lines.append([*way, *map("{:.2f}".format, sizes), *time])
    return markdown([*head, "Time", "Range", "Final loss"], lines, texts=2)


class Panel(NamedTuple):
    """One task and one optimizer: the runs of three seeds for each way of storage."""

    title: str
    runs: dict[str, list[Run]]


COLOURS = {"float32": "#1f4e9c", "8 bits": "#d95f02", "4 bits": "#1b9e77"}


def save_picture(panels: list[Panel], path: pathlib.Path) -> None:
    """The smoothed losses of batches, and the final losses on the right."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    axes = figure.subplots(2, len(panels) // 2)
    for panel, ax in zip(panels, axes.ravel(), strict=True):
        for name, of_seeds in panel.runs.items():
            for i, run in enumerate(of_seeds):
                _draw(ax, run, COLOURS[name], name if i == 0 else None)
        ax.set_yscale("log")
        # The axis shows the range in which they differ, with plain numbers.
        low = min(run.final for of_seeds in panel.runs.values() for run in of_seeds)
        start = panel.runs["float32"][0].losses[0]
        ax.set_ylim(0.4 * low if low < 1 else 0.95 * low, 0.7 * start)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 2.5, 3, 5)))
        ax.yaxis.set_major_formatter("{x:.3g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_title(panel.title, fontsize=10, loc="left")
        ax.tick_params(labelsize=7, which="both")
        ax.grid(color="0.93")
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, fontsize=8)
    figure.supxlabel("step (dots: final loss on held-out data)", fontsize=9)
    figure.supylabel("loss", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _draw(ax, run, colour, label) -> None:
    window = len(run.losses) // 20
    smooth = np.convolve(run.losses, np.ones(window) / window, "valid")
    steps = window / 2 + np.arange(len(smooth))
    few = np.s_[:: window // 2]  # neighbours average nearly the same losses
    ax.plot(
        steps[few], smooth[few], color=colour, linewidth=0.9, label=label, alpha=0.8
    )
    ax.plot(1.04 * len(run.losses), run.final, "o", color=colour, markersize=4)


def summary(panels: list[Panel]) -> str:
    """The final losses in the picture: mean, smallest and largest over the seeds."""
    lines = []
    for panel in panels:
        cells = []
        for of_seeds in panel.runs.values():
            final = [run.final for run in of_seeds]
            ends = f"{min(final):.3f} to {max(final):.3f}"
            cells.append(f"{np.mean(final):.3f} ({ends})")
        lines.append([panel.title, *cells])
    return markdown(["", *COLOURS], lines)
