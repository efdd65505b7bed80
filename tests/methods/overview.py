"""The tables of all optimizers in the documentation."""

import pathlib
import re

import jax
import jax.numpy as jnp

from . import BY_FAMILY, METHODS
from .method import Method


PAGES = pathlib.Path(__file__).parents[2] / "docs" / "api" / "optimizers"
INDEX, TRAINING = PAGES / "index.md", PAGES.parents[1] / "training.md"
_TABLES = re.compile("(?<=methods` -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def written() -> dict[pathlib.Path, str]:
    """The pages with the tables that the rows make."""
    tables = "".join(
        f"\n## [{_title(family)}]({family}.md)\n\n{_table(methods)}\n"
        for family, methods in BY_FAMILY.items()
    )
    made = {INDEX: tables, TRAINING: f"\n{_compared()}\n"}
    return {
        page: _TABLES.sub(lambda _, made=made[page]: f"{made}\n", page.read_text())
        for page in made
    }


def _title(family: str) -> str:
    return (PAGES / f"{family}.md").read_text().partition("\n")[0].removeprefix("# ")


def _table(methods: list[Method]) -> str:
    lines = ["| Optimizer | State | Idea |", "|---|--:|---|"]
    lines += [
        f"| [`{m.name}`][eqopt.{m.name}] | {copies(m):g} | {m.idea} |" for m in methods
    ]
    return "\n".join(lines)


def _compared() -> str:
    """What is compared with another optimizer, because Optax does not have it."""
    by_nearest: dict[str, list[str]] = {}
    for method in METHODS.values():
        if method.nearest and method.deviates and method.rates:
            by_nearest.setdefault(method.nearest, []).append(method.name)
    lines = ["| In Optax | compared with |", "|:--|:--|"]
    lines += [f"| {name} | {', '.join(ours)} |" for name, ours in by_nearest.items()]
    return "\n".join(lines)


def copies(method: Method) -> float:
    """The size of the state, in multiples of parameters that are 1000 x 1000."""
    params = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    state = jax.eval_shape(method.ours(0.1).init, params)
    return round(sum(x.size for x in jax.tree.leaves(state)) / params.size, 1)
