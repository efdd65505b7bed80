"""Compiles the steps for a platform, and prints or writes their figures."""

import argparse
import json
import os
import sys
from collections.abc import Iterator


if __name__ == "__main__":  # before JAX starts
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from benchmarks.accelerators.cases import Case
from benchmarks.accelerators.devices import PLATFORMS, connected, device
from benchmarks.accelerators.models import params_of
from benchmarks.accelerators.stepping import compiled, counted
from benchmarks.scaling.matrices import counted as distributed
from jaxtyping import PyTree

from .figures import COMPARED, Figures, write
from .gradients import LAYOUTS, sent
from .rows import (
    LEAFWISE,
    NESTED,
    OF_MODEL,
    ONE_MATRIX,
    ROWS,
    SHAPES,
    TWO_MATRICES,
    rows_of,
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compiled")
    parser.add_argument("platform", choices=PLATFORMS)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--write", action="store_true", help="of all rows")
    parser.add_argument(
        "--leafwise", action="store_true", help="all leafwise rows of the registry, too"
    )
    parser.add_argument(
        "--devices", action="store_true", help="what steps on 8 H100 send, too"
    )
    options = parser.parse_intermixed_args(arguments)
    cases = ROWS | NESTED
    for name in options.rows:
        if name not in cases:
            parser.error(f"row: {name!r} is not one of {', '.join(cases)}")
    if options.rows and options.write:
        parser.error("--write: writes all rows; found names of rows, leave them out")
    device(options.platform)
    found: dict[str, Figures] = {}
    for name in options.rows or rows_of(options.platform):
        case = cases[name]
        params = _shaped(case, TWO_MATRICES if name in NESTED else SHAPES)
        if name in OF_MODEL:
            params = params_of(OF_MODEL[name], case.dtype)
        found[name] = _figures(case, params, options.platform)
        print(json.dumps({"row": name, **found[name]}), flush=True)
    if options.leafwise:
        for line in _leafwise(options.platform):
            print(json.dumps(line), flush=True)
    if options.devices:
        for line in _on_devices():
            print(json.dumps(line), flush=True)
    failed = [name for name, figures in found.items() if "failure" in figures]
    if options.write and not failed:
        kept = lambda figures: {key: figures[key] for key in COMPARED}
        write(options.platform, {name: kept(row) for name, row in found.items()})
    return 1 if failed else 0


def _leafwise(platform: str) -> Iterator[Figures]:
    """The figures of all leafwise rows of the registry, for one matrix."""
    for name, case in LEAFWISE.items():
        figures = _figures(case, _shaped(case, ONE_MATRIX), platform)
        yield {"row": f"leafwise, {name}", **figures}


def _on_devices() -> Iterator[Figures]:
    """What is sent for gradients, and by methods for matrices that are distributed."""
    for name in LAYOUTS:
        yield {"row": f"gradients, {name}", "sent": sent(name, "h100", "1x1x8", 512)}
    devices = connected("h100", "1x1x8")
    for layout in ("fully sharded", "experts"):
        for method in ("Muon", "SOAP"):
            row = distributed(layout, method, devices, is_divided=True)
            yield {
                "row": f"{layout}: {method}",
                "sent": row.sizes(),
                "exchanges": len(row.found),
                "hidden": row.hidden,
                "shards": row.temporary / row.share,
            }


def _shaped(case: Case, shapes: dict[str, tuple[int, ...]]) -> PyTree:
    return {name: jax.ShapeDtypeStruct(x, case.dtype) for name, x in shapes.items()}


def _figures(case: Case, params: PyTree, platform: str) -> Figures:
    try:
        step = compiled(case.ours(), params, platform)
    except Exception as error:  # report it, and compile the other rows
        return {"failure": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    found = counted(step, PLATFORMS[platform].bandwidth)
    return {key: round(found[key], 4) for key in ("limit", *COMPARED)}


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
