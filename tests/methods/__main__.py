"""Writes what the documentation says about the optimizers that have a row here.

python -m tests.methods              # the tables of all optimizers: a second
python -m tests.methods --add Name   # all tables, figures and pictures of a new one

A new optimizer gets its learning rates from `python -m benchmarks.training --tune --only
Name`, and belongs in its row before.
"""

import argparse
import subprocess
import sys

from benchmarks.accelerators.devices import PLATFORMS, is_installed

from . import BY_FAMILY, METHODS
from .overview import written


# As all rows of the table were measured.
MEASURED = "--processes=5", "--rounds=2"


def commands(name: str) -> list[list[str]]:
    """What to run for a new optimizer, as the arguments of `python -m`.

    Programs for an accelerator are compiled where its compiler is installed.
    """
    [family] = [f for f, methods in BY_FAMILY.items() if METHODS[name] in methods]
    compiled = [
        ["benchmarks.accelerators", platform, "--write", name]
        for platform in PLATFORMS
        if is_installed(platform)
    ]
    return [
        ["benchmarks.training", "--write", "--only", name],
        ["benchmarks", "--optimizers", *MEASURED, "--write", "--only", name],
        ["benchmarks.workloads"],  # what has no result yet: a minute
        ["benchmarks.workloads", "--write"],
        *compiled,
        ["docs.examples.draw_paths", "docs/images", family],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.methods")
    parser.add_argument("--add", metavar="NAME", choices=METHODS)
    name = parser.parse_args().add
    for page, text in written().items():
        page.write_text(text)
    for command in commands(name) if name else []:
        print("python -m", *command, flush=True)
        subprocess.run([sys.executable, "-m", *command], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
