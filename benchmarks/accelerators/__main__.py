"""Compiles or times the steps, keeps the results, and writes the page from them."""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any


if __name__ == "__main__" and "--run" not in sys.argv:  # before JAX starts
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from jaxtyping import DTypeLike

from ..pages import write_parts
from .cases import Case, cases
from .devices import PLATFORMS, device
from .models import MODELS
from .report import PAGE, line, parts
from .results import Row, add
from .stepping import copy_bandwidth, counts, timed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerators")
    parser.add_argument(
        "device",
        nargs="?",
        help="h100 or tpu: compile for it. With --run, the name of the results. "
        "Without a device, --write writes the page again.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--model", choices=MODELS, default="lm")
    parser.add_argument(
        "--run", action="store_true", help="time steps on the device that is here"
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the results, and write the page"
    )
    options = parser.parse_intermixed_args(arguments)
    failures = 0
    if options.device is not None:
        if not options.run and options.device not in PLATFORMS:
            parser.error(
                f"device: {options.device!r} is not one of {', '.join(PLATFORMS)}; "
                "add --run to time steps on the device that is here"
            )
        found = cases(options.cases, options.device)
        about, measure = _timing() if options.run else _counting(options.device)
        for name, case in found.items():
            rows = list(_rows(name, case, options.model, measure))
            failures += sum("failure" in row for row in rows)
            if options.write:
                add(options.device, about, rows)
    if options.write:
        write_parts(PAGE, parts())
    return 1 if failures else 0


# A function of an optimizer, the name of a model and a dtype.
_Measure = Callable[[Any, str, DTypeLike], Row]


def _counting(platform: str) -> tuple[Row, _Measure]:
    about = {"device": device(platform).device_kind, **_versions()}
    return about, functools.partial(counts, platform=platform)


def _timing() -> tuple[Row, _Measure]:
    bandwidth = copy_bandwidth()
    about = {"device": jax.devices()[0].device_kind, "copy": bandwidth, **_versions()}
    return about, functools.partial(timed, bandwidth=bandwidth)


def _versions() -> Row:
    return {name: version(name) for name in ("jax", "optax", "eqopt")}


def _rows(name: str, case: Case, model: str, measure: _Measure) -> Iterator[Row]:
    for library, make in (("eqopt", case.ours), ("optax", case.theirs)):
        if make is None:
            continue
        row: Row = {"model": model, "case": name, "library": library}
        try:
            row |= measure(make(), model, case.dtype)
        except Exception as error:  # the others are still measured
            row["failure"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            row["failure"] = row["failure"][:200]
        print(line(row), flush=True)
        yield row


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
