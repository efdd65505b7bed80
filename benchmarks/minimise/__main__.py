"""Makes all runs, and writes the tables and the picture."""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp

from .problems import problems
from .report import Result, save_picture, table, table_of_medians, totals
from .runs import is_decided_by_rounding, medians, minimise


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "minimising.md"
PICTURE = PAGE.parent / "images" / "minimising.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minimise")
    titles = [problem.title for problem in problems()]
    parser.add_argument(
        "--only", action="append", metavar="TITLE", choices=titles, help="repeatable"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the page and its picture"
    )
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--write needs all problems")
    results = []
    for problem in problems():
        if problem.title not in (options.only or titles):
            continue
        print(f"{problem.title} ...", file=sys.stderr, flush=True)
        runs, single = (minimise(problem, x) for x in (jnp.float64, jnp.float32))
        of_many = medians(problem) if is_decided_by_rounding(runs) else None
        results.append(Result(problem, runs, single, of_many))
    ours, theirs = totals(results)
    text = "\n\n".join(
        [
            table(results),
            table_of_medians(results),
            "On all problems that both solve, with medians where there are several runs: "
            f"{ours:g} evaluations by eqopt, {theirs:g} by Optax.",
        ]
    )
    print(text)
    if options.write:
        before, marker, _ = PAGE.read_text().partition("<!-- table -->\n")
        PAGE.write_text(f"{before}{marker}\n{text}\n")
        save_picture(results, PICTURE)
    return int(ours > 1.05 * theirs)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
