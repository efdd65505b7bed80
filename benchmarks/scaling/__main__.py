"""Writes the tables of layouts and methods, measured, counted and estimated."""

import argparse
import datetime
import os
import pathlib
import sys
from importlib.metadata import version


DEVICES = 8

if __name__ == "__main__":  # before JAX starts
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + f" --xla_force_host_platform_device_count={DEVICES}"
    )

import jax  # noqa: E402

from .. import machine  # noqa: E402
from ..accelerators.devices import connected  # noqa: E402
from ..pages import write_parts  # noqa: E402
from .extrapolation import extrapolated  # noqa: E402
from .matrices import steps, table as table_of_methods  # noqa: E402
from .table import measured, table  # noqa: E402


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "scaling_out.md"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--rounds", type=int, default=20, help="steps that are timed")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="the tables that are compiled for 8 H100",
    )
    parser.add_argument("--write", action="store_true", help="write them into the page")
    options = parser.parse_args(arguments)
    parts = _compiled() if options.compiled else _measured(options.rounds)
    print("\n\n".join(parts.values()))
    if options.write:
        write_parts(PAGE, parts)
    return 0


def _measured(rounds: int) -> dict[str, str]:
    found = machine.in_one_line(machine.describe())
    return {"measured": f"{table(measured(DEVICES, rounds))}\n\n{found}."}


def _compiled() -> dict[str, str]:
    devices = connected("h100", f"1x1x{DEVICES}")
    found = [*steps(devices)]
    by = f"jax {version('jax')}, eqopt {version('eqopt')}; {datetime.date.today()}."
    parts = {"methods": f"{table_of_methods(found)}\n\nCompiled with {by}"}
    return parts | extrapolated(devices)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
