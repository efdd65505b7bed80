"""The tables of the page, from the results."""

import collections
import pathlib

from ..pages import markdown
from .cases import CASES
from .models import MODELS
from .results import Row, read


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "accelerators.md"

# A number above these is bold.
MUCH_MOVED, MUCH_MEMORY = 1.3, 0.1


def line(row: Row) -> str:
    """A result in one line."""
    start = f"{row['library']} {row['model']}: {row['case']:32s}"
    if "failure" in row:
        return f"{start} {row['failure']}"
    time = f"{row['ms']:8.3f} ms, host {row['host']:.3f}, " if "ms" in row else ""
    custom = f" {row['custom']}" if row["custom"] else ""
    loops = " loops of unknown length" if row["unknown_loops"] else ""
    return (
        f"{start} {time}roofline {row['roofline']:.3f} ms, state {row['state']:.2f}, "
        f"temporary {row['temporary']:.3f}, limit {row['limit']:.2f}, moved "
        f"{row['least']:.2f} to {row['most']:.2f}, kernels {row['kernels']}, products "
        f"{row['products']}, copies {row['copies']}{custom}{loops}"
    )


def parts() -> dict[str, str]:
    """The parts of the page, by their names."""
    return {
        "h200": measured(*read("h200")),
        "h100": compiled(*read("h100")),
        "tpu": compiled(*read("tpu")),
    }


def _pairs(rows: list[Row]) -> list[tuple[Row, Row | None]]:
    """The rows of eqopt, each with the row of Optax for the same case."""
    theirs = {(r["model"], r["case"]): r for r in rows if r["library"] == "optax"}
    ours = [row for row in rows if row["library"] == "eqopt"]
    models, steps = list(MODELS), list(CASES)
    ours.sort(key=lambda r: (models.index(r["model"]), steps.index(r["case"])))
    return [(row, theirs.get((row["model"], row["case"]))) for row in ours]


def measured(about: Row, rows: list[Row]) -> str:
    """The times of steps on a device, next to Optax."""
    head = ["Model", "Step", "Time, ms", "Optax, ms", "Ratio", "Roofline, ms", "Moved"]
    lines = []
    for row, other in _pairs(rows):
        step = f"{row['case']} ({row['note']})" if "note" in row else row["case"]
        cells = [row["model"], step, *_times(row, other)]
        if "failure" not in row:
            memory = [f"{row[key]:.2f}" for key in ("temporary", "state")]
            cells += [_roofline(row), _range(row), *memory]
        lines.append(cells)
    table = markdown([*head, "Temporary", "State"], lines, texts=2)
    copy = f"; a copy moves {about['copy'] / 1e12:.2f} TB/s" if about else ""
    return f"{table}\n\n{_about(about)}{copy}."


def _times(row: Row, other: Row | None) -> list[str]:
    """The time of eqopt, the time of Optax and the ratio."""
    if "failure" in row:
        return ["does not run"]
    if other is None:
        return [_ms(row["ms"]), "", ""]
    if "failure" in other:
        return [_ms(row["ms"]), "does not run", ""]
    return [_ms(row["ms"]), _ms(other["ms"]), f"{row['ms'] / other['ms']:.2f}"]


def compiled(about: Row, rows: list[Row]) -> str:
    """What steps cost, compiled for a device, next to Optax.

    Steps at the limit are only listed, by what they move.
    """
    head = ["Step", "Limit", "State", "Moved", "Temporary", "Kernels"]
    head += ["Optax: state", "moved", "temporary", "kernels"]
    lines, listed = [], collections.defaultdict(list)
    for row, other in _pairs(rows):
        limit = "" if "failure" in row else f"{row['limit']:.2f}"
        if _at_limit(row) and (other is None or _same_cost(row, other)):
            listed[limit].append(row["case"])
        else:
            lines.append([row["case"], limit, *_cells(row), *_cells(other)])
    names = "\n".join(
        f"- **{limit}**: {'; '.join(listed[limit])}"
        for limit in sorted(listed, key=float)
    )
    done = {row["case"] for row in rows}
    missing = "; ".join(name for name in CASES if name not in done)
    note = f" Not compiled: {missing}." if missing else ""
    return f"{names}\n\n{markdown(head, lines)}\n\n{_about(about)}.{note}"


def _at_limit(row: Row) -> bool:
    """Whether arguments and results are all that is moved, and all memory that is used.

    The state must take half of what is above 3, as for float32 parameters.
    """
    return "failure" not in row and all(
        f"{found:.2f}" == f"{expected:.2f}"
        for found, expected in (
            (row["least"], row["limit"]),
            (row["most"], row["limit"]),
            (row["temporary"], 0),
            (3 + 2 * row["state"], row["limit"]),
        )
    )


def _same_cost(row: Row, other: Row) -> bool:
    same = f"{row['limit']:.2f}" == f"{other.get('limit', 0):.2f}"
    return same and _at_limit(other)


def _cells(row: Row | None) -> list[str]:
    """The state, what is moved, temporary memory and kernels."""
    if row is None:
        return [""] * 4
    if "failure" in row:
        return ["", "does not compile", "", ""]
    temporary = _bold(f"{row['temporary']:.2f}", row["temporary"] > MUCH_MEMORY)
    return [f"{row['state']:.2f}", _moved(row), temporary, f"{row['kernels']}"]


def _moved(row: Row) -> str:
    return _bold(_range(row), row["most"] > MUCH_MOVED * row["limit"])


def _range(row: Row) -> str:
    least, most = f"{row['least']:.2f}", f"{row['most']:.2f}"
    return most if least == most else f"{least} to {most}"


def _roofline(row: Row) -> str:
    """The times in which memory moves the least and the most."""
    least = row["roofline"]
    most = least * row["most"] / row["least"]
    return _ms(most) if most < 1.01 * least else f"{_ms(least)} to {_ms(most)}"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:#.3g}" if milliseconds < 99.95 else f"{milliseconds:.0f}"


def _about(about: Row) -> str:
    if not about:
        return "No results yet"
    versions = [f"{name} {about[name]}" for name in ("jax", "optax", "eqopt")]
    return f"{about['device']}; {', '.join(versions)}"
