"""The table of all ways, and the picture of how they train."""

import pathlib
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .runs import Cost, Run
from .ways import Way


class Row(NamedTuple):
    way: Way
    cost: Cost
    final: float


def table(rows: list[Row]) -> str:
    lines = [
        "| Parameters | State | Bytes: parameters | state | sum | Temporary | Time | "
        "Final loss |",
        "|:--|:--" + "|--:" * 6 + "|",
    ]
    for (params, state), cost, final in rows:
        total = cost.params + cost.state
        numbers = f"{cost.params:.2f} | {cost.state:.2f} | {total:.2f}"
        time = f"{cost.temporary:.2f} | {cost.time:.1f}"
        lines.append(f"| {params} | {state} | {numbers} | {time} | {final:.3f} |")
    return "\n".join(lines)


class Panel(NamedTuple):
    """One task and one optimizer: runs in float32 by seed, and one of each other way."""

    title: str
    full: list[Run]
    others: dict[str, Run]


COLOURS = {"8 bits": "#d95f02", "4 bits": "#1b9e77"}


def save_picture(panels: list[Panel], path: pathlib.Path) -> None:
    """Losses of batches, smoothed; at the right the final ones."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    axes = figure.subplots(2, len(panels) // 2)
    for panel, ax in zip(panels, axes.ravel(), strict=True):
        for i, run in enumerate(panel.full):
            label = "float32, three seeds" if i == 0 else None
            _draw(ax, run, "#1f4e9c", 0.9, label)
        for name, run in panel.others.items():
            _draw(ax, run, COLOURS[name], 1.4, name)
        ax.set_yscale("log")
        # From where they differ; with plain numbers.
        low, start = min(r.final for r in runs(panel)), panel.full[0].losses[0]
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
    figure.supxlabel(
        "step (dots: the loss of what was held out, at the end)", fontsize=9
    )
    figure.supylabel("loss", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def runs(panel: Panel) -> list[Run]:
    return [*panel.full, *panel.others.values()]


def _draw(ax, run, colour, width, label) -> None:
    window = len(run.losses) // 20
    smooth = np.convolve(run.losses, np.ones(window) / window, "valid")
    steps = window / 2 + np.arange(len(smooth))
    ax.plot(steps, smooth, color=colour, linewidth=width, label=label, alpha=0.85)
    ax.plot(1.04 * len(run.losses), run.final, "o", color=colour, markersize=4)


def summary(panels: list[Panel]) -> str:
    """The final losses in the picture."""
    lines = [
        "| | float32, three seeds | 8 bits | 4 bits |",
        "|:--|--:|--:|--:|",
    ]
    for panel in panels:
        full = [run.final for run in panel.full]
        ends = f"{min(full):.3f} to {max(full):.3f}"
        others = " | ".join(f"{run.final:.3f}" for run in panel.others.values())
        lines.append(f"| {panel.title} | {ends} | {others} |")
    return "\n".join(lines)
