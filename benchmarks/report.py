"""Converts measurements to rows, and rows to a table."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from .cases import Case
from .measures import Measured, Settings


class Row(NamedTuple):
    """One line of the table, and one object in the JSON file.

    **Attributes:**

    - `name`, `what`: the name of the case, and a description.
    - `unit`: `"ms"` for times, or `"MB"` for temporary memory.
    - `eqopt`, `other`: the values in this unit.
    - `against`: the name of the other library.
    - `eqopt_fraction`, `other_fraction`: for memory, the value divided by the memory of
        the parameters.
    - `eqopt_median`, `other_median`: for times, the median of all calls.
    - `ratio`: the value of eqopt divided by the other value, if that is not zero.
    - `lowest`, `highest`: the lowest and the highest ratio, if several processes
        measured this. All other values are from the process with the middle ratio.
    - `target`: the target in words, or empty.
    - `met`: whether the target was met, or `None` if there is no target.
    - `nearest`: what is measured in Optax, if Optax does not have the optimizer.
    """

    name: str
    what: str
    unit: str
    eqopt: float
    other: float
    against: str
    ratio: float | None
    target: str = ""
    met: bool | None = None
    eqopt_fraction: float | None = None
    other_fraction: float | None = None
    eqopt_median: float | None = None
    other_median: float | None = None
    nearest: str = ""
    lowest: float | None = None
    highest: float | None = None


def rows(case: Case, measured: Measured, settings: Settings) -> list[Row]:
    """One row for the time, and a second one if memory was measured."""
    what = case.what.format(
        size=_count(settings.size),
        leaves=settings.leaves,
        few=settings.few,
    )
    ms = measured.seconds.map(lambda s: 1e3 * getattr(s, case.statistic))
    medians = measured.seconds.map(lambda s: 1e3 * s.median)
    ratio = ms.eqopt / ms.other
    time = Row(
        case.name,
        what,
        "ms",
        ms.eqopt,
        ms.other,
        case.against,
        ratio,
        eqopt_median=medians.eqopt,
        other_median=medians.other,
        nearest=case.nearest,
    )
    if case.ratio is not None:
        time = time._replace(target=f"<= {case.ratio:g}", met=ratio <= case.ratio)
    if measured.temporary is None or measured.params is None:
        return [time]
    total = measured.params
    mb = measured.temporary.map(lambda x: x / 1e6)
    fractions = measured.temporary.map(lambda x: x / total)
    memory = Row(
        f"{case.name}/memory",
        what.rpartition(":")[0] + ": temporary memory",
        "MB",
        mb.eqopt,
        mb.other,
        case.against,
        mb.eqopt / mb.other if mb.other else None,
        eqopt_fraction=fractions.eqopt,
        other_fraction=fractions.other,
    )
    if case.temporary is not None:
        met = fractions.eqopt < case.temporary
        memory = memory._replace(target=f"< {100 * case.temporary:g} %", met=met)
    return [time, memory]


def table(rows: list[Row], markdown: bool = False) -> str:
    """The rows as text in aligned columns, or as Markdown for the page.

    The page has neither the short names nor the targets. If some rows compare with Optax,
    the other rows say with what they compare.
    """
    against = {row.against for row in rows}
    other = against.pop() if len(against) == 1 else "Optax"
    lines = [["name", "work", "eqopt", other, "ratio", "target", "met"]]
    lines += [_cells(row, other) for row in rows]
    if markdown:
        lines.insert(1, ["", ":--", "--:", "--:", "--:", "", ""])
        return "\n".join(f"| {' | '.join(line[1:-2])} |" for line in lines)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def compact(rows: list[Row]) -> str:
    """One line of Markdown for the time and the memory of each optimizer."""
    lines = [["Optimizer", "eqopt", "Optax", "ratio", "range"]]
    lines[0] += ["memory", "Optax's", "compared with"]
    share = lambda x: f"{100 * (x or 0):.1f} %"
    for time, memory in _pairs(rows):
        lines.append(
            [
                time.what.partition(",")[0],
                *(_value(x, "ms", None) for x in (time.eqopt, time.other)),
                f"{time.ratio:.2f}",
                _range(time),
                *(share(x) for x in (memory.eqopt_fraction, memory.other_fraction)),
                time.nearest,
            ]
        )
    lines.insert(1, [":--", *["--:"] * 6, ":--"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_memory(rows: list[Row], other: str = "other") -> str:
    """One line of Markdown for each case: its time, and its temporary memory, if any.

    **Arguments:**

    - `other`: what most rows compare with; others name it in the cell. Memory is then a
        share of the parameters. By default, all rows name it, and memory is in MB.
    """
    lines = [["work", "eqopt", other, "ratio", "memory", f"{other}'s"]]
    lines.append([":--", *["--:"] * 5])
    memories = {row.name: row for row in rows if row.unit == "MB"}
    for time in (row for row in rows if row.unit == "ms"):
        what, *cells = _cells(time, other)[1:5]
        memory = memories.get(f"{time.name}/memory")
        if memory is None:
            cells += ["", ""]
        elif other == "other":
            cells += [_value(x, "MB", None) for x in (memory.eqopt, memory.other)]
        else:
            fractions = memory.eqopt_fraction, memory.other_fraction
            cells += [f"{100 * (x or 0):.1f} %" for x in fractions]
        lines.append([what.removesuffix(": a call"), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _pairs(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Each row of a time with the row of the memory of the same case."""
    by_name = {row.name: row for row in rows}
    return [
        (row, by_name[f"{row.name}/memory"])
        for row in rows
        if f"{row.name}/memory" in by_name
    ]


def written(page: str, new: str, names: Iterable[str]) -> str:
    """The page, with its table updated from `new`.

    Only the rows that `new` has, and the header, change.

    The table is between `<!-- optimizers -->` and `<!-- end of optimizers -->`.
    """
    before, begin, rest = page.partition("<!-- optimizers -->\n")
    page, end, after = rest.partition("<!-- end of optimizers -->\n")
    line = re.compile(r"^\| (\w+) \| [\d.]+ ms .*\n", re.MULTILINE)
    old = [match for match in line.finditer(page) if match[1] in names]
    lines = {m[1]: m[0] for m in [*old, *line.finditer(f"{new}\n")]}
    header = "".join(f"{line}\n" for line in new.splitlines()[:2])
    table = header + "".join(lines[name] for name in names if name in lines)
    page = page[: page.index("| Optimizer |")] + table + page[old[-1].end() :]
    return before + begin + page + end + after


def _cells(row: Row, other: str) -> list[str]:
    return [
        row.name,
        row.what,
        _value(row.eqopt, row.unit, row.eqopt_fraction),
        _value(row.other, row.unit, row.other_fraction)
        + ("" if row.against == other else f" ({row.against})"),
        # For memory, the target is a fraction of the bytes of the parameters.
        "" if row.ratio is None or row.unit == "MB" else _ratio(row),
        row.target,
        "" if row.met is None else "yes" if row.met else "no",
    ]


def _ratio(row: Row) -> str:
    return f"{row.ratio:.2f}" + (f" ({found})" if (found := _range(row)) else "")


def _range(row: Row) -> str:
    return "" if row.lowest is None else f"{row.lowest:.2f} to {row.highest:.2f}"


def _value(x: float, unit: str, fraction: float | None) -> str:
    digits = 0 if x >= 99.95 else 1 if x >= 9.995 else 2  # three figures
    return f"{x:.{digits}f} {unit}" + (
        "" if fraction is None else f" ({100 * fraction:.1f} %)"
    )


def _count(n: int) -> str:
    return f"{n / 1e6:g}M" if n >= 1_000_000 else f"{n:,}"
