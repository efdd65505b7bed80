"""The tables and the picture of the results."""

import pathlib
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..pages import markdown
from .problems import Problem
from .runs import STARTS, Run, Runs


class Result(NamedTuple):
    """The results for one problem.

    **Attributes:**

    - `problem`: the problem.
    - `runs`: the runs in float64.
    - `single`: the runs in float32.
    - `medians`: the median numbers of evaluations of eqopt and of Optax over many starts,
        if both have solved the problem with different numbers of evaluations.
    """

    problem: Problem
    runs: Runs
    single: Runs
    medians: tuple[float, float] | None


_NAMES = {"eqopt": "eqopt", "optax": "Optax", "scipy": "SciPy"}


def table(results: list[Result]) -> str:
    """Steps and evaluations in float64, then evaluations in float32."""
    lines = []
    for result in results:
        runs, single = result.runs, result.single
        cells = [
            result.problem.title,
            *(f"{_evaluations(run)} ({run.steps})" for run in runs if run),
            _number(runs.eqopt.value),
            *(_evaluations(run) for run in single if run),
        ]
        lines.append(cells)
    sums = [_sum(results, "runs", name, steps=True) for name in _NAMES]
    sums += ["", *(_sum(results, "single", name) for name in ("eqopt", "optax"))]
    lines.append(["**Where all succeed**", *sums])
    head = ["Problem", *_NAMES.values(), "$f$", "float32: eqopt", "Optax"]
    return markdown(head, lines)


def table_of_medians(results: list[Result]) -> str:
    """The medians for problems on which the libraries differ: is it only rounding?"""
    medians = [f"{name}, median of {STARTS}" for name in ("eqopt", "Optax")]
    lines = []
    for result in results:
        if result.medians is not None:
            counts = result.runs.eqopt.evaluations, result.runs.optax.evaluations
            numbers = map("{:g}".format, counts + result.medians)
            lines.append([result.problem.title, *numbers])
    return markdown(["Problem", "eqopt", "Optax", *medians], lines)


def totals(results: list[Result]) -> tuple[float, float]:
    """Evaluations of eqopt and Optax on problems that both solve; medians if known."""
    pairs = [
        result.medians or (result.runs.eqopt.evaluations, result.runs.optax.evaluations)
        for result in results
        if result.runs.eqopt.is_solved and result.runs.optax.is_solved
    ]
    ours, theirs = np.sum(pairs, axis=0)
    return float(ours), float(theirs)


def _sum(results: list[Result], which: str, name: str, steps: bool = False) -> str:
    rows = [getattr(result, which) for result in results]
    solved = [getattr(row, name) for row in rows if row.are_solved]
    total = f"**{sum(run.evaluations for run in solved)}**"
    return total + (f" ({sum(run.steps for run in solved)})" if steps else "")


def _evaluations(run: Run) -> str:
    return str(run.evaluations) if run.is_solved else f"*{run.evaluations}*"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.6g}"


def save_picture(results: list[Result], path: pathlib.Path) -> None:
    """A curve per library: the share of problems solved by number of evaluations."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    styles = {"eqopt": ("#1f4e9c", "-", 2.5), "optax": ("#d95f02", "--", 1.5)}
    styles["scipy"] = ("0.45", ":", 1.5)
    for name, label in _NAMES.items():
        runs = [getattr(result.runs, name) for result in results]
        counts = np.sort([run.evaluations for run in runs if run.is_solved])
        share = 100 * np.arange(1, len(counts) + 1) / len(results)
        color, line, width = styles[name]
        axes.step(
            [1, *counts, 2000],
            [0, *share, share[-1]],
            where="post",
            color=color,
            linestyle=line,
            linewidth=width,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_xlim(4, 1000)
    axes.set_ylim(0, 100)
    axes.set_xlabel("evaluations of the function with its gradient")
    axes.set_ylabel("problems solved, %")
    axes.grid(color="0.92")
    axes.legend(loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
