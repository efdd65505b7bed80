"""All optimizers for matrices, and the table."""

import argparse
import json
import pathlib
import sys

import jax

from .. import machine
from .report import Row, record, table
from .runs import OPTIMIZERS, PERIOD, SIZES, Matrices, cost


def _matrices(text: str) -> Matrices:
    number, _, side = text.partition("x")
    try:
        found = Matrices(int(number), int(side))
    except ValueError:
        found = Matrices(0, 0)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be such as 48x256, but is {text!r}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matrices",
        description=f"A step, the mean over {PERIOD} of them, beside one of AdamW.",
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
    add("--output", type=pathlib.Path, default=pathlib.Path("outputs/matrices.json"))
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only or OPTIMIZERS:
        for matrices in options.matrices or SIZES:
            print(f"{name}, {matrices} ...", file=sys.stderr, flush=True)
            rows.append(Row(name, matrices, cost(name, matrices, options.rounds)))
    where = machine.describe()
    report = {"machine": where, "rows": [record(row) for row in rows]}
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{table(rows)}\n\n{machine.in_one_line(where)}.")
    return 0


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(main())
