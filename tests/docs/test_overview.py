"""The tables of optimizers in the documentation."""

import re

import jax
import jax.numpy as jnp
import pytest
from benchmarks.optimizers import OPTIMIZERS

from .pages import DOCS


def table(page):
    """The rows of the table of a page, by the name in the first column."""
    rows = re.findall(r"^\| \[`(\w+)`\]\S* \| (.*) \|$", page.read_text(), re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in rows}


OVERVIEW = table(DOCS / "api" / "optimizers" / "index.md")


@pytest.mark.parametrize("page", ["api/optimizers/index.md", "training.md"])
def test_every_optimizer_is_there(page):
    assert table(DOCS / page).keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OVERVIEW)
def test_sizes_of_states(name):
    params = [jax.ShapeDtypeStruct((1000, 1000), jnp.float32)]
    state = jax.eval_shape(OPTIMIZERS[name].ours(0.1).init, params)
    size = sum(x.size for x in jax.tree.leaves(state)) / 1e6
    assert float(OVERVIEW[name][0]) == pytest.approx(size, abs=0.05)
