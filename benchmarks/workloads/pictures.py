"""Makes the pictures of the page."""

import math
import pathlib
from collections.abc import Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import eqopt

from .protocol import EVALUATIONS, FACTORS, Cell
from .results import Failure
from .summary import Results, Row
from .workload import Workload


NEVER = 1.2  # the position of "never", in budgets


def save_steps(
    rows: list[Row], workloads: Mapping[str, Workload], path: pathlib.Path
) -> None:
    """Steps to the target of each optimizer, by workload, with dots for the seeds."""
    figure = Figure(figsize=(8.5, 0.16 * len(rows) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(workloads), sharey=True)
    names = [row.name for row in rows]
    places = np.arange(len(rows))
    adamw = next(row for row in rows if row.name == "AdamW")
    for panel, (name, workload) in zip(panels, workloads.items(), strict=True):
        for place, row in zip(places, rows, strict=True):
            if name not in row.marks:
                panel.text(0.5, place, "fails", fontsize=6, va="center", color="0.4")
                continue
            mark = row.marks[name]
            seeds = [min(x, NEVER) for x in mark.by_seed]
            panel.plot(
                [min(seeds), max(seeds)], [place] * 2, color="0.75", linewidth=1.5
            )
            reached = math.isfinite(mark.to_target)
            panel.plot(
                min(mark.to_target, NEVER),
                place,
                "o" if reached else "x",
                color="#1f4e9c" if reached else "0.55",
                markersize=4,
            )
        panel.axvline(adamw.marks[name].to_target, color="#d95f02", linewidth=1)
        panel.set_xlim(0, NEVER + 0.06)
        panel.set_xticks([0, 0.5, 1, NEVER], ["0", "½", "1", "no"])
        panel.set_title(workload.title, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(axis="y", color="0.94")
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(places, names)
    panels[0].invert_yaxis()
    panels[0].margins(y=0.01)
    figure.supxlabel(
        "budget to the target: mean of three seeds, and from the first to the last of "
        "them; orange: AdamW",
        fontsize=9,
    )
    _save(figure, path)


def save_rates(
    rows: list[Row],
    results: Results,
    workloads: Mapping[str, Workload],
    starts: Mapping[str, float],
    path: pathlib.Path,
) -> None:
    """Progress with each learning rate, for each optimizer; a line for each workload."""
    columns = 5
    shape = -(-len(rows) // columns), columns
    figure = Figure(figsize=(8.5, 1.1 * shape[0] + 0.7), layout="constrained")
    panels = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
    for panel in panels[len(rows) :]:
        panel.set_visible(False)
    lines = []
    for panel, row in zip(panels, rows, strict=False):
        lines = []
        for name, workload in workloads.items():
            cell = results[name][row.name]
            if not isinstance(cell, Cell):
                continue
            way = math.log(starts[name] / workload.target)
            losses = np.array(cell.finals)
            good = np.isfinite(losses) & (losses > 0)
            progress = np.log(starts[name] / np.where(good, losses, 1)) / way
            shown = np.where(good, np.clip(progress, 0, 1.15), 0)
            lines += panel.plot(FACTORS, shown, linewidth=1, label=workload.title)
        panel.axhline(1, color="0.8", linewidth=0.8, zorder=0)
        panel.set_xscale("log")
        panel.set_xticks([1e-2, 1, 1e2])
        panel.minorticks_off()
        panel.set_yticks([0, 0.5, 1])
        panel.set_title(row.name, fontsize=8, pad=2)
        panel.tick_params(labelsize=7, length=2)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=lines, loc="outside upper center", ncols=len(workloads), fontsize=7.5
    )
    figure.supxlabel("learning rate, as a multiple of the usual one", fontsize=9)
    figure.supylabel("progress: 0 is the start, 1 is the target", fontsize=9)
    _save(figure, path)


def save_curves(
    names: list[str],
    results: Results,
    workloads: Mapping[str, Workload],
    path: pathlib.Path,
) -> None:
    """The validation losses of a few optimizers, by `eqopt.plot.training_curves`."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(2, -(-len(workloads) // 2)).ravel()
    for panel in panels[len(workloads) :]:
        panel.set_visible(False)
    for panel, (name, workload) in zip(panels, workloads.items(), strict=False):
        cells = [results[name][each] for each in names]
        curves = {cell.name: cell.curves for cell in cells if isinstance(cell, Cell)}
        steps = workload.steps * np.arange(1, EVALUATIONS + 1) / EVALUATIONS
        eqopt.plot.training_curves(
            curves, steps=steps, target=workload.target, axes=panel
        )
        panel.set_title(workload.title, fontsize=9)
        panel.tick_params(labelsize=7, which="both")
        panel.set(xlabel="", ylabel="")
        panel.get_legend().remove()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(names), fontsize=8
    )
    figure.supxlabel("steps", fontsize=9)
    figure.supylabel("validation loss (dashed: the target)", fontsize=9)
    _save(figure, path)


def save_home(
    results: Mapping[str, Cell | Failure],
    rows: list[Row],
    workload: Workload,
    path: pathlib.Path,
) -> None:
    """The picture of the first page: Muon and AdamW learn a language, on a phone, too."""
    names = ("AdamW", "Muon")
    cells = [results[name] for name in names]
    curves = {cell.name: cell.curves for cell in cells if isinstance(cell, Cell)}
    marks = {row.name: row.marks["language"] for row in rows if row.name in names}
    slow, fast = (round(workload.steps * marks[x].to_target) for x in names)
    figure = Figure(figsize=(4.5, 3), layout="constrained")
    panel = figure.subplots()
    steps = workload.steps * np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    eqopt.plot.training_curves(curves, steps=steps, target=workload.target, axes=panel)
    panel.set_title(
        f"Muon needs {fast} steps where AdamW needs {slow}", fontsize=11, loc="left"
    )
    panel.set(xlabel="steps", ylabel="held-out loss")
    panel.plot([slow, fast], [workload.target] * 2, "o", color="0.3", zorder=3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    _save(figure, path)


def _save(figure: Figure, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without this salt, the names in the file are random, and files are not reproducible.
    with rc_context({"svg.hashsalt": "eqopt"}):
        figure.savefig(path, metadata={"Date": None})
