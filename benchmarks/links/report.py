"""The tables and the picture of the page."""

import pathlib
from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure

from .. import machine
from ..pages import markdown
from ..workloads.language import SHAPE
from .link import LATENCY, SEVEN, SEVENTY, Large, Link, compute_seconds, hours, steps_of
from .methods import DATA_PARALLEL, DILOCO, NAMES, POWER_SGD, STREAMING, ZERO1
from .results import TARGET, Results, steps
from .sent import Messages, messages, shapes_of
from .training import RANK, STEPS


COLOURS = {
    DATA_PARALLEL: "#333333",
    ZERO1: "#999999",
    POWER_SGD: "#1b9e77",
    DILOCO: "#d95f02",
    STREAMING: "#1f4e9c",
}
# Gbit/s: in the table and in the picture.
SHOWN, SPEEDS = (0.1, 1, 10, 100, 1000), [10 ** (i / 40) for i in range(-40, 121)]


def parts(results: Results) -> dict[str, str]:
    """The parts of the page, by name."""
    trained = _trained(results) + f"\n\n{machine.in_one_line(results.machine)}."
    return {
        "trained": trained,
        "assumed": _assumed(),
        "sent": _sent(),
        "hours": _hours(results),
        "fastest": _fastest(results),
    }


def _trained(results: Results) -> str:
    heads = ["Method", "Learning rate", f"Steps to {TARGET}", "Relative"]
    heads += [
        f"Loss after {STEPS} steps",
        "Sent per device and step: counted",
        "formula",
    ]
    rows, shapes = [], shapes_of(SHAPE)
    for name, found in steps(results).items():
        needed = f"{found.needed:.0f} ({found.fewest:.0f} to {found.most:.0f})"
        row = [name, f"{found.rate:g}", needed]
        row += [f"{found.relative:.2f}", f"{found.final:.3f}"]
        sizes = results.counted[name], messages(name, shapes, RANK)
        rows.append([*row, *(f"{one.per_step / 1e3:.2f} kB" for one in sizes)])
    return markdown(heads, rows)


def _assumed() -> str:
    heads = ["Model", "Parameters", "Width, hidden units, layers", "Rank of PowerSGD"]
    heads += ["A step computes for", "Steps of data parallelism", "Hours without links"]
    rows = []
    for large in (SEVEN, SEVENTY):
        shape, seconds = large.shape, compute_seconds(large)
        sides = f"{shape.width}, {shape.hidden}, {shape.layers}"
        row = [large.name, f"{large.size / 1e9:.2f} billion", sides, str(large.rank)]
        row += [f"{seconds:.1f} s", f"{steps_of(large):,.0f}"]
        rows.append([*row, f"{steps_of(large) * seconds / 3600:,.0f}"])
    return markdown(heads, rows)


def _sent() -> str:
    heads = ["Method", "7B: sent per device and step", "at once"]
    heads += ["70B: sent per device and step", "at once", "Relative"]
    rows = []
    first = _messages(DATA_PARALLEL, SEVEN).per_step
    for name in NAMES:
        row = [name]
        for large in (SEVEN, SEVENTY):
            found = _messages(name, large)
            at_once = found.per_step * found.steps
            if name == STREAMING:
                at_once *= 2 / len(found.sent)
            row += [_gigabytes(found.per_step), _gigabytes(at_once)]
        rows.append([*row, f"{_messages(name, SEVEN).per_step / first:.2g}"])
    return markdown(heads, rows)


def _times(results: Results, speeds: Sequence[float]) -> dict[str, list[float]]:
    """Hours for the model with 7 billion parameters, by method, for each speed."""
    found = {}
    for name, trained in steps(results).items():
        sent, links = _messages(name, SEVEN), [Link(LATENCY, x) for x in speeds]
        found[name] = [hours(SEVEN, trained.relative, sent, link) for link in links]
    return found


def _hours(results: Results) -> str:
    found, rows = _times(results, SHOWN), []
    least = [min(column) for column in zip(*found.values(), strict=True)]
    for name, times in found.items():
        cells = [
            f"**{time:,.0f}**" if time == best else f"{time:,.0f}"
            for time, best in zip(times, least, strict=True)
        ]
        rows.append([name, *cells])
    return markdown(["Method", *(f"{speed:g} Gbit/s" for speed in SHOWN)], rows)


def _fastest(results: Results) -> str:
    """Which method is the fastest between which speeds, the fastest links first."""
    found = _times(results, SPEEDS)
    best = [min(found, key=lambda name: found[name][i]) for i in range(len(SPEEDS))]
    changes = [i for i in range(1, len(best)) if best[i] != best[i - 1]]
    bounds = [f"{float(f'{SPEEDS[i]:.2g}'):g} Gbit/s" for i in changes]
    ranges = [(best[i], bound) for i, bound in zip(changes, bounds, strict=True)]
    lines, above = [], ""
    for name, bound in reversed(ranges):
        between = f"from {bound} to {above}" if above else f"from {bound}"
        lines.append(f"- {between}: **{name}**")
        above = bound
    lines.append(f"- below {above}: **{best[0]}**" if above else f"- **{best[0]}**")
    return "\n".join(lines)


def _messages(name: str, large: Large) -> Messages:
    return messages(name, shapes_of(large.shape), large.rank)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def save_picture(results: Results, path: pathlib.Path) -> None:
    """Hours to the loss for the model with 7 billion parameters, by link speed."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    ax = figure.subplots()
    for name, times in _times(results, SPEEDS).items():
        ax.plot(SPEEDS, times, color=COLOURS[name], linewidth=1.8, label=name)
    alone = compute_seconds(SEVEN) * steps_of(SEVEN) / 3600
    ax.axhline(alone, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    ax.set(xscale="log", yscale="log", xlim=(0.1, 1000))
    ax.set_xlabel("speed of the link between machines, Gbit/s")
    ax.set_ylabel("hours to the loss")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.grid(color="0.93")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without this salt, the names in the file are random.
    with rc_context({"svg.hashsalt": "eqopt"}):
        figure.savefig(path, metadata={"Date": None})
