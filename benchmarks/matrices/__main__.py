"""Measures all optimizers for matrices, and writes the table."""

import argparse
import json
import pathlib
import sys

import jax

from .. import machine
from ..pages import write_parts
from ..processes import in_each, odd
from .report import END, INTRODUCTION, Row, middle, record, restored, table
from .runs import OPTIMIZERS, PERIOD, SIZES, Matrices, cost


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks.md"


def _matrices(text: str) -> Matrices:
    number, _, side = text.partition("x")
    try:
        found = Matrices(int(number), int(side))
    except ValueError:
        found = Matrices(0, 0)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be such as 48x256, but is {text!r}")
    return found


def _measured(options: argparse.Namespace) -> list[Row]:
    rows = []
    for name in options.only or OPTIMIZERS:
        for matrices in options.matrices or SIZES:
            print(f"{name}, {matrices} ...", file=sys.stderr, flush=True)
            rows.append(Row(name, matrices, cost(name, matrices, options.rounds)))
    return rows


def _in_processes(options: argparse.Namespace) -> list[Row]:
    command = ["benchmarks.matrices", f"--rounds={options.rounds}"]
    command += [f"--only={name}" for name in options.only or ()]
    command += [
        f"--matrices={size.number}x{size.side}" for size in options.matrices or ()
    ]
    runs = in_each(command, options.processes, options.output)
    return [middle([*map(restored, rows)]) for rows in zip(*runs, strict=True)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matrices",
        description=f"The time of a step, averaged over {PERIOD}, compared with AdamW.",
    )
    add = parser.add_argument
    add(
        "--only", action="append", metavar="NAME", choices=OPTIMIZERS, help="repeatable"
    )
    add(
        "--matrices",
        action="append",
        metavar="NUMBERxSIDE",
        type=_matrices,
        help="such as 48x256; repeatable",
    )
    add("--rounds", type=int, default=3, help=f"of {2 * PERIOD} steps each")
    add("--processes", type=odd, default=1, help="that with the middle ratio counts")
    add("--output", type=pathlib.Path, default=pathlib.Path("outputs/matrices.json"))
    add(
        "--write",
        action="store_true",
        help="put the table of all optimizers into the documentation",
    )
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--write is for the whole table: leave out --only")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    where = machine.describe()
    rows = (_in_processes if options.processes > 1 else _measured)(options)
    report = {"machine": where, "rows": [record(row) for row in rows]}
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    load = "unknown" if where["load"] is None else f"{where['load']:.1f}"
    text = f"{table(rows)}\n\n{machine.in_one_line(where)}; load at the start {load}."
    print(text)
    if options.write:
        write_parts(PAGE, {"matrices": f"{INTRODUCTION}\n{text}\n\n{END.rstrip()}"})
    return 0


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(main())
