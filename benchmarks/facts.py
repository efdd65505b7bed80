"""Writes a line of facts under the entry of each optimizer, from rows and results.

`python -m benchmarks.facts` writes these lines into the pages under `docs/api`.
"""

import functools
import math
import os
import pathlib
import re
import statistics

import jax
import jax.numpy as jnp
from tests.methods import METHODS
from tests.methods.method import Method

import eqopt

from .workloads.__main__ import Found, stored
from .workloads.protocol import Cell
from .workloads.summary import Row


DOCS = pathlib.Path(__file__).parents[1] / "docs"
_ENTRY = re.compile(
    r"(?P<entry>^::: eqopt\.(?P<name>\w+)\n(?:    .*\n)*\n\*When to use it:\* (?:.+\n)+)"
    r"(?:\n\*State:\* .*\n)?",
    re.MULTILINE,
)
# The workloads that the line names: small versions of what most users train.
_NAMED = {"digits": "digits", "language": "language model"}
_ROW = re.compile(r"^\| (\w+) \| .+? ms \| .+? ms \| ([\d.]+) \|", re.MULTILINE)


def pages() -> list[pathlib.Path]:
    """The pages with entries of optimizers."""
    entry = re.compile(rf"^::: eqopt\.({'|'.join(METHODS)})$", re.MULTILINE)
    return [p for p in sorted(DOCS.rglob("*.md")) if entry.search(p.read_text())]


def with_facts(page: pathlib.Path) -> str:
    """The text of the page, with a line for each optimizer on it."""

    def replaced(found: re.Match) -> str:
        method = METHODS.get(found["name"])
        return (
            found[0] if method is None else f"{found['entry']}\n{line(method, page)}\n"
        )

    return _ENTRY.sub(replaced, page.read_text())


def line(method: Method, page: pathlib.Path, found: Found | None = None) -> str:
    """The facts about the optimizer, with links that are relative to `page`.

    Facts that were not measured are omitted, and so are failed runs.

    **Arguments:**

    - `found`: the results. Defaults to the stored ones.
    """
    link = lambda text, name: f"[{text}]({os.path.relpath(DOCS / name, page.parent)})"
    found, ratios = found or _results(), _ratios()
    workloads = link(f"{len(found.workloads)} workloads", "which_optimizer.md")
    cells = [of.get(method.name) for of in found.results.values()]
    rates = sorted(cell.best for cell in cells if isinstance(cell, Cell))
    best = f"; best on the {workloads}: {_range(rates)}" if rates else ""
    facts = [
        f"*State:* {_state(method)}.",
        f"*Learning rate:* usually {_short(method.default_rate)}{best}.",
    ]
    for row in found.rows:
        if row.name == method.name:
            reached = f"reached on {row.reached} of {len(found.workloads)}"
            if math.isfinite(row.relative):
                reached = f"{row.relative:.2f} (median), {reached}"
            [adamw] = [row for row in found.rows if row.name == "AdamW"]
            named = " and ".join(
                f"{_relative(row, adamw, workload)} on the {what}"
                for workload, what in _NAMED.items()
            )
            facts.append(
                f"*Steps to the target, relative to tuned AdamW:* {reached}; {named}."
            )
    if method.in_optax and method.name in ratios:
        time = link(f"{ratios[method.name]} of Optax's", "benchmarks.md")
        facts.append(f"*Time of a step:* {time}.")
    return " ".join(facts)


def _relative(row: Row, adamw: Row, workload: str) -> str:
    there = row.marks.get(workload)
    if there is None or not math.isfinite(there.to_target):
        return "never"
    return f"{there.to_target / adamw.marks[workload].to_target:.2f}"


def _range(rates: list[float]) -> str:
    low, high = _short(rates[0]), _short(rates[-1])
    if low == high:
        return low
    return f"{low} to {high}, median {_short(statistics.median(rates))}"


def _state(method: Method) -> str:
    of_matrix, of_vector = (
        f"{state_bytes(method, shape):g}" for shape in ((1000, 1000), (1000 * 1000,))
    )
    if of_matrix == of_vector == "0":
        return "none that grows with the parameters"
    if of_matrix == of_vector:
        return f"{of_matrix} bytes per float32 parameter"
    return (
        f"{of_matrix} bytes per float32 parameter of a matrix, {of_vector} of a vector"
    )


def state_bytes(method: Method, shape: tuple[int, ...]) -> float:
    """Bytes of state per parameter for a float32 array of this shape, rounded."""
    params = jax.ShapeDtypeStruct(shape, jnp.float32)
    state = jax.eval_shape(method.ours(0.1).init, params)
    return round(eqopt.tree.nbytes(state).total / params.size, 1)


def _short(rate: float) -> str:
    return f"{float(f'{rate:.2g}'):g}".replace("e-0", "e-")


@functools.cache
def _results() -> Found:
    return stored()


@functools.cache
def _ratios() -> dict[str, str]:
    """The time of a step divided by Optax's, from the page of benchmarks."""
    page = (DOCS / "benchmarks.md").read_text()
    _, _, table = page.partition("<!-- optimizers -->")
    return dict(_ROW.findall(table.partition("<!-- end of optimizers -->")[0]))


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_facts(page))
