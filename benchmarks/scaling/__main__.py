"""Writes the table of layouts, measured and counted, and estimates for larger models."""

import argparse
import os
import pathlib
import sys


DEVICES = 8

if __name__ == "__main__":  # before JAX starts
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + f" --xla_force_host_platform_device_count={DEVICES}"
    )

import jax  # noqa: E402

from .. import machine  # noqa: E402
from ..pages import write_parts  # noqa: E402
from .extrapolation import extrapolated  # noqa: E402
from .table import measured, table  # noqa: E402


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "scaling_out.md"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--rounds", type=int, default=20, help="steps that are timed")
    parser.add_argument("--write", action="store_true", help="write them into the page")
    options = parser.parse_args(arguments)
    found = machine.in_one_line(machine.describe())
    parts = {
        "measured": f"{table(measured(DEVICES, options.rounds))}\n\n{found}.",
        "extrapolated": extrapolated(),
    }
    print("\n\n".join(parts.values()))
    if options.write:
        write_parts(PAGE, parts)
    return 0


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
