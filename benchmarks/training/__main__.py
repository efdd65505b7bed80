"""Makes all runs, and writes the table and the picture."""

import argparse
import pathlib
import sys

import jax
from tests.methods import METHODS

from ..optimizers import OPTIMIZERS
from .problems import problems
from .report import Result, is_good, read, save_picture, table
from .runs import train, tune


GRID = [10.0 ** (e / 2) for e in range(-8, 3)]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "training.md"
PICTURE = PAGE.parent / "images" / "training.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=METHODS, help="repeatable"
    )
    parser.add_argument(
        "--tune", action="store_true", help="print learning rates for `tests/methods`"
    )
    parser.add_argument(
        "--write", action="store_true", help="write them to the page and its picture"
    )
    options = parser.parse_args(arguments)
    chosen = options.only or list(OPTIMIZERS)
    untuned = [] if options.tune else [n for n in chosen if n not in OPTIMIZERS]
    if untuned:
        parser.error(f"without learning rates: {', '.join(untuned)}; see --tune")
    results = []
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        method = METHODS[name]
        if options.tune:
            rates = [tune(method, p, GRID) for p in problems()]
            print(f"{name}: rates=({', '.join(f'{rate:.2g}' for rate in rates)}),")
            continue
        runs = [
            train(method, p, rate)
            for p, rate in zip(problems(), method.rates, strict=True)
        ]
        results.append(Result(name, method.rates, runs))
    if options.tune:
        return 0
    print(table(results))
    if options.write:
        before, marker, written = PAGE.read_text().partition("<!-- table -->\n")
        known = {result.name: result for result in [*read(written), *results]}
        # In the order of the rows. Optimizers that were not run keep their results.
        known = [known[name] for name in OPTIMIZERS if name in known]
        PAGE.write_text(f"{before}{marker}\n{table(known)}\n")
        save_picture(known, PICTURE)
    bad = [r.name for r in results if not is_good(r)]
    if bad:
        print(f"not good enough: {', '.join(bad)}", file=sys.stderr)
    return len(bad)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
