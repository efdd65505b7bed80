"""The tables of optimizers in the documentation."""

import re

import jax
import jax.numpy as jnp
import pytest
from benchmarks.optimizers import OPTIMIZERS

import eqopt
from eqopt._checks import _EXTRAS

from .pages import DOCS


def table(page):
    """The rows of the table of a page, by the name in the first column."""
    rows = re.findall(r"^\| \[`(\w+)`\]\S* \| (.*) \|$", page.read_text(), re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in rows}


OVERVIEW = table(DOCS / "api" / "optimizers" / "index.md")


def test_every_optimizer_is_there():
    # L-BFGS is not for batches, which those are trained on.
    assert OVERVIEW.keys() == OPTIMIZERS.keys() | {"LBFGS"}
    assert table(DOCS / "training.md").keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OVERVIEW)
def test_sizes_of_states(name):
    params = [jax.ShapeDtypeStruct((1000, 1000), jnp.float32)]
    make = OPTIMIZERS[name].ours if name in OPTIMIZERS else getattr(eqopt, name)
    state = jax.eval_shape(make(0.1).init, params)
    size = sum(x.size for x in jax.tree.leaves(state)) / 1e6
    assert float(OVERVIEW[name][0]) == pytest.approx(size, abs=0.05)


def test_the_list_of_extra_arguments():
    page = (DOCS / "api" / "base.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert listed == {*_EXTRAS, "weight"}
