"""The table, and the records for the results file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..contestants import Pair
from ..harness import Timing
from .runs import Cost, Matrices


INTRODUCTION = """\
## Methods for matrices

Square float32 matrices, compared with AdamW in the same run. *State* is a multiple of the
parameters, and *temporary* memory a share of them. A step is the mean over 10 steps, in
which each basis, root and subspace is computed once (PSGDKron's default is *each step*).
*Of torch* is the ratio to the time of the authors' code in torch, on as many threads. A
row shows the median of three processes, and the ratio to AdamW has their range. The
ratios of AdamW itself show the noise.
"""

END = """\
`python -m benchmarks.matrices --processes 3 --rounds 1 --write` writes this table, with
`OPENBLAS_NUM_THREADS=1` ([why](api/optimizers/index.md#matrices)). Its columns on torch
need torch, and the code of [nikhilvyas/SOAP](https://github.com/nikhilvyas/SOAP) and
[facebookresearch/optimizers](https://github.com/facebookresearch/optimizers) on the path.
"""


class Row(NamedTuple):
    name: str
    matrices: Matrices
    cost: Cost


def table(rows: list[Row]) -> str:
    """The table in Markdown: a line for each optimizer, three columns for each size.

    There is a fourth column if any optimizer was compared with torch.
    """
    with_torch = any(row.cost.beside_torch is not None for row in rows)
    sizes = list(dict.fromkeys(row.matrices for row in rows))
    lines = [["Optimizer", "State"], [":--", "--:"]]
    for size in sizes:
        lines[0] += [str(size), "of AdamW", "temporary"]
        lines[1] += 3 * ["--:"]
        if with_torch:
            lines[0].append("of torch")
            lines[1].append("--:")
    costs = {(row.name, row.matrices): row.cost for row in rows}
    for name in dict.fromkeys(row.name for row in rows):
        found = [costs[name, size] for size in sizes]
        lines.append([name, f"{max(x.state for x in found):.1f}"])
        for x in found:
            time = f"{float(f'{1e3 * x.seconds.eqopt.best:.3g}'):g} ms"
            lines[-1] += [time, _of_adamw(x), f"{100 * x.temporary:.0f} %"]
            if with_torch:
                lines[-1].append(_of_torch(x))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of_adamw(cost: Cost) -> str:
    if cost.lowest is None:
        return f"{cost.ratio:.1f}"
    return f"{cost.ratio:.1f} ({cost.lowest:.1f} to {cost.highest:.1f})"


def _of_torch(cost: Cost) -> str:
    pair = cost.beside_torch
    return "" if pair is None else f"{_ratio(pair):.2f}"


def _ratio(pair: Pair[Timing] | None) -> float:
    return 0.0 if pair is None else pair.eqopt.best / pair.other.best


def middle(rows: Sequence[Row]) -> Row:
    """The row with the middle ratio to AdamW, and the middle ratio to torch.

    **Arguments:**

    - `rows`: what each of several processes measured for the same optimizer.
    """
    costs = sorted((row.cost for row in rows), key=lambda cost: cost.ratio)
    half = len(costs) // 2
    cost = costs[half]._replace(
        beside_torch=sorted((x.beside_torch for x in costs), key=_ratio)[half],
        lowest=costs[0].ratio,
        highest=costs[-1].ratio,
    )
    return rows[0]._replace(cost=cost)


def record(row: Row) -> dict[str, Any]:
    """The row as an object for JSON."""
    mine, adamw = row.cost.seconds
    beside = row.cost.beside_torch
    return {
        "name": row.name,
        "matrices": row.matrices._asdict(),
        "state": row.cost.state,
        "seconds": mine._asdict(),
        "adamw_seconds": adamw._asdict(),
        "ratio": row.cost.ratio,
        "temporary": row.cost.temporary,
        "beside_torch": beside
        and beside.map(lambda timing: timing._asdict())._asdict(),
        "lowest": row.cost.lowest,
        "highest": row.cost.highest,
    }


def restored(record: dict[str, Any]) -> Row:
    """The row of an object that `record` returned."""
    pair = lambda mine, other: Pair(Timing(**mine), Timing(**other))
    beside = record["beside_torch"]
    cost = Cost(
        record["state"],
        pair(record["seconds"], record["adamw_seconds"]),
        record["temporary"],
        beside and pair(*beside.values()),
        record["lowest"],
        record["highest"],
    )
    return Row(record["name"], Matrices(**record["matrices"]), cost)
