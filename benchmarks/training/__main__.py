"""All runs, the table and the picture."""

import argparse
import pathlib
import sys

import jax

from ..optimizers import OPTIMIZERS
from .problems import problems
from .rates import RATES
from .report import Result, is_good, save_picture, table
from .runs import train, tune


GRID = [10.0 ** (e / 2) for e in range(-8, 3)]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "training.md"
PICTURE = PAGE.parent / "images" / "training.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    names = list(OPTIMIZERS)
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=names, help="repeatable"
    )
    parser.add_argument(
        "--tune", action="store_true", help="print learning rates for `rates.py`"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the page and its picture"
    )
    options = parser.parse_args(arguments)
    chosen = options.only or names
    if options.write and options.only:
        parser.error("--write needs all optimizers")
    results = []
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if options.tune:
            rates = [tune(OPTIMIZERS[name], p, GRID) for p in problems()]
            print(f'    "{name}": ({", ".join(f"{rate:.2g}" for rate in rates)}),')
            continue
        runs = [
            train(OPTIMIZERS[name], p, rate)
            for p, rate in zip(problems(), RATES[name], strict=True)
        ]
        results.append(Result(name, RATES[name], runs))
    if options.tune:
        return 0
    print(table(results))
    if options.write:
        before, marker, _ = PAGE.read_text().partition("<!-- table -->\n")
        PAGE.write_text(f"{before}{marker}\n{table(results)}\n")
        save_picture(results, PICTURE)
    bad = [r.name for r in results if not is_good(r)]
    if bad:
        print(f"not good enough: {', '.join(bad)}", file=sys.stderr)
    return len(bad)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
