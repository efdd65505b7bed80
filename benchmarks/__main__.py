"""Parses options, runs the benchmarks, and writes the results."""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence

import jax

from . import machine
from .cases import ALONE, CASES, EVERY_OPTIMIZER, GRADIENTS, README, TABLE, Case
from .measures import LEAF, Settings
from .optimizers import OPTIMIZERS
from .pages import write_parts
from .processes import in_processes, odd
from .report import Row, compact, rows, table, with_memory, written


ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures eqopt and Optax in one run. Names: " + ", ".join(names),
    )
    add = parser.add_argument
    add("--only", action="append", metavar="NAME", choices=names, help="repeatable")
    add("--readme", action="store_true", help="only the rows of the README")
    add("--optimizers", action="store_true", help="a step of every optimizer instead")
    add("--gradients", action="store_true", help="gradients of examples instead")
    add("--size", type=int, default=50_000_000, help="parameters")
    add("--leaves", type=int, default=1000, help="to trace; a tenth to compile")
    add(
        "--rounds",
        type=int,
        help="turns of each contestant; 6 with --readme, else 10 by default",
    )
    add(
        "--processes",
        type=odd,
        default=1,
        help="an odd number: the one with the middle ratio counts; 1 by default",
    )
    add("--markdown", action="store_true", help="print the table as Markdown")
    add("--write", action="store_true", help="write the table into its page")
    add("--output", type=pathlib.Path, default=pathlib.Path("outputs/benchmarks.json"))
    options = parser.parse_args(arguments)
    if options.write and not options.optimizers and (options.only or options.readme):
        parser.error("--write needs all rows of a table")
    if options.rounds is None:
        options.rounds = 6 if options.readme else 10
    options.size -= options.size % (10 * LEAF)
    # Check this now, not after ten minutes. The file is emptied, so that old results are
    # not mistaken for new ones if this run is interrupted.
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("")
    return options


def _chosen(options: argparse.Namespace) -> Sequence[Case]:
    if options.only:
        return [case for case in CASES if case.name in options.only]
    if options.gradients:
        return GRADIENTS
    if options.readme:
        return README
    return EVERY_OPTIMIZER if options.optimizers else TABLE


def _measured(cases: Sequence[Case], settings: Settings) -> list[Row]:
    """The rows of all cases. It prints each result as soon as it is there."""
    results = []
    for number, case in enumerate(cases, 1):
        start = time.perf_counter()
        _tell(f"{number}/{len(cases)} {case.name} ")
        found = rows(case, case.measure(settings), settings)
        seconds = time.perf_counter() - start
        _tell(f" {found[0].ratio:.2f} of {case.against}'s time ({seconds:.0f} s)\n")
        results += found
    return results


def _write(results: list[Row], options: argparse.Namespace) -> None:
    if options.optimizers:
        PAGE.write_text(written(PAGE.read_text(), compact(results), OPTIMIZERS))
    elif options.gradients:
        write_parts(PAGE, {"gradients": with_memory(results)})
    else:
        for page, parts in _parts(results).items():
            write_parts(page, parts)


def _parts(results: list[Row]) -> dict[pathlib.Path, dict[str, str]]:
    """The tables of each page, by their names."""
    names = {case.name for case in README}
    shown = [x for x in results if x.name.removesuffix("/memory") in names]
    parts = {
        "wrappers": with_memory([x for x in results if x.against != ALONE], "Optax"),
        "around AdamW": with_memory([x for x in results if x.against == ALONE], ALONE),
        "cpu": with_memory(shown, "Optax"),
    }
    return {ROOT / "README.md": {"cpu": parts.pop("cpu")}, PAGE: parts}


def _tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    settings = Settings(options.size, options.leaves, options.rounds)
    where = machine.describe()
    if options.processes > 1:
        results = in_processes(
            _chosen(options), settings, options.processes, options.output
        )
    else:
        results = _measured(_chosen(options), settings)
    report = {
        "machine": where,
        "settings": settings._asdict(),
        "rows": [row._asdict() for row in results],
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    if options.optimizers and options.markdown:
        print(compact(results))
    else:
        print(table(results, options.markdown))
    if options.write:
        _write(results, options)
    print(f"\n{machine.in_one_line(where)}")
    print(f"Wrote {options.output}", file=sys.stderr)


if __name__ == "__main__":
    # Without a cache on disk, so that every program is compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    main()
