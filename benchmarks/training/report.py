"""Evaluates the results, and makes the table and the picture."""

import math
import pathlib
import re
from typing import NamedTuple

from matplotlib.figure import Figure

from ..optimizers import OPTIMIZERS
from ..pages import markdown
from .problems import problems
from .runs import RESOLVED, Run


class Result(NamedTuple):
    """The results of one optimizer on all problems."""

    name: str
    rates: tuple[float, ...]
    runs: list[Run]


def is_good(result: Result) -> bool:
    """Whether it trains, within 2 % of Optax's loss if the algorithm is the same."""
    same = not OPTIMIZERS[result.name].deviates
    return all(
        run.ours <= problem.share and (run.ratio <= 1.02 or not same)
        for run, problem in zip(result.runs, problems(), strict=True)
    )


def table(results: list[Result]) -> str:
    titles = [problem.title for problem in problems()]
    lines = []
    for result in results:
        cells = [
            f"{_both(_percent(run.ours), _percent(run.theirs))} ({rate:.2g})"
            for run, rate in zip(result.runs, result.rates, strict=True)
        ]
        lines.append([f"[`{result.name}`][eqopt.{result.name}]", *cells])
    return markdown(["Optimizer", *titles], lines)


def _both(ours: str, theirs: str) -> str:
    return ours if ours == theirs else f"{ours} / {theirs}"


_CELL = re.compile(r"(\S+)(?: / (\S+))? \((\S+)\)")


def read(table: str) -> list[Result]:
    """The results in a table from `table`, with the digits in that table."""
    results = []
    for name, line in re.findall(r"^\| \[`(\w+)`\]\S+ \|(.*)\|$", table, re.MULTILINE):
        cells = _CELL.findall(line)
        runs = [Run(_share(ours), _share(other or ours)) for ours, other, _ in cells]
        results.append(Result(name, tuple(float(rate) for *_, rate in cells), runs))
    return results


def _share(percent: str) -> float:
    return float(percent) / 100


def _percent(share: float) -> str:
    if math.isnan(share):
        return "NaN"
    if share < RESOLVED:
        return "0"
    return f"{100 * share:.0f}" if share >= 1 else f"{100 * share:.2g}"


_NAN = 4.0  # the position of NaN in the picture


def _place(share: float) -> float:
    return _NAN if math.isnan(share) else max(share, RESOLVED)


def save_picture(results: list[Result], path: pathlib.Path) -> None:
    """A line for each optimizer, with a mark for each library."""
    figure = Figure(figsize=(10, 0.2 * len(results) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(problems()), sharey=True)
    names = [result.name for result in results]
    for i, (panel, problem) in enumerate(zip(panels, problems(), strict=True)):
        ours, theirs = (
            [_place(getattr(result.runs[i], side)) for result in results]
            for side in ("ours", "theirs")
        )
        panel.scatter(
            theirs, names, s=50, facecolors="none", edgecolors="#d95f02", label="Optax"
        )
        panel.scatter(ours, names, s=12, color="#1f4e9c", label="eqopt")
        panel.axvline(problem.share, color="0.6", linewidth=1, linestyle="--")
        panel.set_xscale("log")
        panel.set_xlim(RESOLVED / 2, 2 * _NAN)
        panel.set_title(problem.title, fontsize=10)
        panel.tick_params(labelsize=7)
        panel.grid(axis="y", color="0.93")
        panel.set_axisbelow(True)
    panels[0].invert_yaxis()
    panels[0].margins(y=0.01)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, fontsize=8)
    share = "final loss, as a share of the initial loss (at the right edge: NaN)"
    figure.supxlabel(share, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
