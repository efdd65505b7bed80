"""The table, and what goes into a file."""

from typing import Any, NamedTuple

from .runs import Cost, Matrices


class Row(NamedTuple):
    name: str
    matrices: Matrices
    cost: Cost


def table(rows: list[Row]) -> str:
    """In Markdown: a line for each optimizer, and three columns for each size."""
    sizes = list(dict.fromkeys(row.matrices for row in rows))
    lines = [["Optimizer", "State"], [":--", "--:"]]
    for size in sizes:
        lines[0] += [str(size), "of AdamW", "temporary"]
        lines[1] += 3 * ["--:"]
    costs = {(row.name, row.matrices): row.cost for row in rows}
    for name in dict.fromkeys(row.name for row in rows):
        found = [costs[name, size] for size in sizes]
        lines.append([name, f"{max(x.state for x in found):.1f}"])
        for x in found:
            time = f"{1e3 * x.seconds.eqopt.best:.3g} ms"
            lines[-1] += [time, f"{x.ratio:.1f}", f"{100 * x.temporary:.0f} %"]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def record(row: Row) -> dict[str, Any]:
    """For JSON."""
    mine, adamw = row.cost.seconds
    return {
        "name": row.name,
        "matrices": row.matrices._asdict(),
        "state": row.cost.state,
        "seconds": mine._asdict(),
        "adamw_seconds": adamw._asdict(),
        "ratio": row.cost.ratio,
        "temporary": row.cost.temporary,
    }
