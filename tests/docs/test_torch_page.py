"""Each row of the tables of "Coming from torch.optim" gives the same numbers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .pages import DOCS, blocks, prose


PAGE = DOCS / "coming_from_torch.md"


def rows(section):
    """The code in the first two columns of the tables of a section."""
    [text] = re.findall(rf"^## {section}\n(.*?)^## ", prose(PAGE), re.M | re.S)
    found = re.findall(r"^\| `(\w+\(.*?\))` \| (.*?) \|", text, re.M)
    return {theirs: ours.strip("`") for theirs, ours in found}


OPTIMIZERS = rows("Optimizers")
SCHEDULES = rows("`lr_scheduler`")
SHAPES = [(3, 4), (4,), (), (2, 3, 2)]


def names():
    """The names that the expressions of the page use."""
    found = {"eqopt": eqopt, "jnp": jnp}
    [helper] = [block.code for block in blocks(PAGE) if "def root" in block.code]
    exec(helper, found)
    return found


@pytest.fixture
def float64(x64, standard_promotion):
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    with x64():
        yield torch
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_every_optimizer_is_there():
    optim = pytest.importorskip("torch.optim")
    there = {
        name
        for name, value in vars(optim).items()
        if isinstance(value, type) and issubclass(value, optim.Optimizer)
    }
    here = {row.removesuffix("(params)") for row in DEFAULTS}
    assert here == there - {"Optimizer"}


DEFAULTS = [row for row in OPTIMIZERS if row.endswith("(params)")]


@pytest.mark.slow
@pytest.mark.parametrize("row", [x for x in OPTIMIZERS if OPTIMIZERS[x] != "none"])
def test_optimizer(row, float64, monkeypatch):
    torch, rng = float64, np.random.default_rng(0)
    # Muon iterates in it, which rounds to three digits.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    shapes = [(3, 4), (5, 2)] if "Muon" in row else SHAPES
    start = [rng.standard_normal(shape) for shape in shapes]
    theirs = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    optimizer = eval(row, {**vars(torch.optim), "params": theirs})
    opt = eval(OPTIMIZERS[row], names())
    params = [jnp.asarray(p) for p in start]
    state, step = opt.init(params), jax.jit(opt.step)
    for _ in range(10):
        grads = [rng.standard_normal(shape) for shape in shapes]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
        params, state = step([jnp.asarray(g) for g in grads], state, params)
    for ours, p, first in zip(params, theirs, start, strict=True):
        assert not np.array_equal(ours, first)
        np.testing.assert_allclose(ours, p.detach().numpy(), 1e-10, 1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("row", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_schedule(row):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    known = {**vars(torch.optim.lr_scheduler), "optimizer": optimizer}
    scheduler, theirs = eval(row, known), []
    for _ in range(100):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = jax.vmap(eval(SCHEDULES[row], names()))(jnp.arange(100))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)


def test_the_tables_are_read():
    assert len(DEFAULTS) == 15
    assert len(OPTIMIZERS) >= 29
    assert len(SCHEDULES) >= 12
