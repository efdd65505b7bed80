"""Trains with all methods, counts what they send, and writes the page."""

import argparse
import os
import pathlib
import sys


if __name__ == "__main__":  # before JAX starts
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=8",
            # The arrays are small: a second thread would only wait.
            "--xla_cpu_multi_thread_eigen=false",
        ]
    )

import jax

from .. import machine
from ..pages import write_parts
from ..workloads.language import SHAPE
from . import results
from .methods import NAMES, TRAINED
from .report import parts, save_picture
from .sent import counted
from .training import RANK, runs


DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "slow_links.md", DOCS / "images" / "slow_links.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links")
    add = parser.add_argument
    add("--only", action="append", choices=TRAINED, help="train only this method")
    add("--write", action="store_true", help="only write the page and the picture")
    options = parser.parse_args(arguments)
    if not options.write:
        results.write(_measured(options.only or list(TRAINED)))
    found = results.read()
    write_parts(PAGE, parts(found))
    save_picture(found, PICTURE)
    return 0


def _measured(only: list[str]) -> results.Results:
    """All that is counted, new runs of some methods, and the stored ones of others."""
    sent = {name: counted(name, SHAPE, RANK) for name in NAMES}
    found = []
    for method in TRAINED:
        if method not in only:
            found += [run for run in results.read().runs if run.method == method]
            continue
        for run in runs(method, results.TARGET):
            print(*run, file=sys.stderr, flush=True)
            found.append(run)
    return results.Results(machine.describe(), found, sent)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
