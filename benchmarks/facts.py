"""A line of facts under the entry of each optimizer, from the rows and the results.

`python -m benchmarks.facts` writes them into the pages under `docs/api`.
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

from .workloads.__main__ import Found, found_in
from .workloads.results import FOLDER


DOCS = pathlib.Path(__file__).parents[1] / "docs"
_ENTRY = re.compile(
    r"(?P<entry>^::: eqopt\.(?P<name>\w+)\n(?:    .*\n)*\n\*When to use it:\* (?:.+\n)+)"
    r"(?:\n\*State:\* .*\n)?",
    re.MULTILINE,
)
_ROW = re.compile(r"^\| (\w+) \| .+? ms \| .+? ms \| ([\d.]+) \|", re.MULTILINE)


def pages() -> list[pathlib.Path]:
    """Those with entries of optimizers."""
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


def line(method: Method, page: pathlib.Path) -> str:
    """What is known of the optimizer, with links that are relative to `page`."""
    link = lambda text, name: f"[{text}]({os.path.relpath(DOCS / name, page.parent)})"
    found, ratios = _results(), _ratios()
    [row] = [row for row in found.rows if row.name == method.name]
    rates = sorted(of[method.name].best for of in found.results.values())
    middle = f", median {_short(statistics.median(rates))}"
    best = f"{_short(rates[0])} to {_short(rates[-1])}{middle}"
    if rates[0] == rates[-1]:
        best = _short(rates[0])
    count = len(found.workloads)
    reached = f"reached on {row.reached} of {count}"
    if math.isfinite(row.relative):
        reached = f"{row.relative:.2f} (median), {reached}"
    facts = [
        f"*State:* {_state(method)}.",
        f"*Learning rate:* usually {_short(method.default_rate)}; best on the "
        f"{link(f'{count} workloads', 'which_optimizer.md')}: {best}.",
        f"*Steps to the target, relative to tuned AdamW:* {reached}.",
    ]
    if method.in_optax and method.name in ratios:
        time = link(f"{ratios[method.name]} of Optax's", "benchmarks.md")
        facts.append(f"*Time of a step:* {time}.")
    return " ".join(facts)


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
    """Bytes of state per parameter, for a float32 array of this shape, rounded."""
    params = jax.ShapeDtypeStruct(shape, jnp.float32)
    state = jax.eval_shape(method.ours(0.1).init, params)
    arrays = jax.tree.leaves(state)
    return round(sum(x.size * x.dtype.itemsize for x in arrays) / params.size, 1)


def _short(rate: float) -> str:
    return f"{float(f'{rate:.2g}'):g}".replace("e-0", "e-")


@functools.cache
def _results() -> Found:
    return found_in(FOLDER)


@functools.cache
def _ratios() -> dict[str, str]:
    """The time of a step over Optax's, as the page of benchmarks has it."""
    table, _, _ = (DOCS / "benchmarks.md").read_text().partition("\n## ")
    return dict(_ROW.findall(table))


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_facts(page))
