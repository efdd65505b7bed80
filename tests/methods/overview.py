"""The tables of all optimizers in the documentation."""

import pathlib
import re

import jax
import jax.numpy as jnp

from . import BY_FAMILY
from .method import Method


PAGES = pathlib.Path(__file__).parents[2] / "docs" / "api" / "optimizers"
PAGE = PAGES / "index.md"
_TABLES = re.compile("(?<=methods` -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with the tables that the rows make."""
    tables = "".join(
        f"\n## [{_title(family)}]({family}.md)\n\n{_table(methods)}\n"
        for family, methods in BY_FAMILY.items()
    )
    return _TABLES.sub(lambda _: f"{tables}\n", page)


def _title(family: str) -> str:
    return (PAGES / f"{family}.md").read_text().partition("\n")[0].removeprefix("# ")


def _table(methods: list[Method]) -> str:
    lines = ["| Optimizer | State | Idea |", "|---|--:|---|"]
    lines += [
        f"| [`{m.name}`][eqopt.{m.name}] | {copies(m):g} | {m.idea} |" for m in methods
    ]
    return "\n".join(lines)


def copies(method: Method) -> float:
    """The size of the state, in multiples of parameters that are 1000 x 1000."""
    params = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    state = jax.eval_shape(method.ours(0.1).init, params)
    return round(sum(x.size for x in jax.tree.leaves(state)) / params.size, 1)
