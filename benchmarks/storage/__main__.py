"""Measures all ways of storage, and writes the table and the picture."""

import argparse
import json
import pathlib
import sys

import jax

from .. import machine
from ..pages import write_parts
from ..processes import in_each, odd
from .report import Panel, Row, middle, record, restored, save_picture, summary, table
from .runs import OPTIMIZERS, cost, train
from .tasks import TASKS
from .ways import FULL, WAYS, Way


DOCS = pathlib.Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "images" / "storage.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage")
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="of two steps each")
    add("--processes", type=odd, default=1, help="that with the middle time counts")
    add("--output", type=pathlib.Path, default=pathlib.Path("outputs/storage.json"))
    add(
        "--picture",
        action="store_true",
        help="the final losses and the picture instead",
    )
    add("--write", action="store_true", help="write them into the documentation")
    options = parser.parse_args(arguments)
    if options.picture:
        panels = [_panel(task, name) for task in TASKS for name in OPTIMIZERS]
        page, marker, text = "half_precision.md", "trained", summary(panels)
        if options.write:
            save_picture(panels, PICTURE)
    else:
        where = machine.describe()
        options.output.parent.mkdir(parents=True, exist_ok=True)
        rows = _measured(options)
        report = {"machine": where, "rows": [record(row) for row in rows]}
        options.output.write_text(json.dumps(report, indent=2) + "\n")
        text = f"{table(rows)}\n\n{machine.in_one_line(where)}."
        page, marker = "benchmarks.md", "storage"
    print(text)
    if options.write:
        write_parts(DOCS / page, {marker: text})
    return 0


def _measured(options: argparse.Namespace) -> list[Row]:
    if options.processes == 1:
        return [_row(way, options.rounds) for way in WAYS]
    command = ["benchmarks.storage", f"--rounds={options.rounds}"]
    runs = in_each(command, options.processes, options.output)
    return [middle([*map(restored, rows)]) for rows in zip(*runs, strict=True)]


def _row(way: Way, rounds: int) -> Row:
    print(f"{way.params}, {way.state} ...", file=sys.stderr, flush=True)
    return Row(way, cost(way, rounds), train(TASKS["language"](), "AdamW", way).final)


def _panel(task: str, name: str) -> Panel:
    print(f"{task}, {name} ...", file=sys.stderr, flush=True)
    found = TASKS[task]()
    ways = {"float32": FULL}
    ways |= {state: Way("float32", state) for state in ("8 bits", "4 bits")}
    runs = {
        state: [train(found, name, way, seed) for seed in range(3)]
        for state, way in ways.items()
    }
    return Panel(f"{name}, {found.name}", runs)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    sys.exit(main())
