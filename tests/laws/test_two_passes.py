"""On a GPU, one pass over a leaf measures its blocks, and a second one stores them."""

import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._core import narrowing

from ..interpreter import interpreted, on_an_accelerator
from ..methods import METHODS
from .registry import law
from .subjects import assert_equal, grads_of, params_of


STORAGES = {
    "8 bits": eqopt.storage.BlockwiseQuantized(block_size=4),
    "4 bits": eqopt.storage.BlockwiseQuantized(4, 4),
    "float8": eqopt.storage.Float8(4),
}
ROWS = {method.laws[0].name for method in METHODS.values()}


@pytest.fixture(autouse=True)
def no_leaf_is_small(monkeypatch):
    monkeypatch.setattr(narrowing, "_LARGE", 0)


def stored(opt, storage=STORAGES["8 bits"]):
    return eqopt.StoreState(opt, storage, eqopt.groups.everything)


def train(opt, platform):
    # A new function, so that it is traced again.
    step = interpreted(lambda opt, *rest: opt.step(*rest))
    params = params_of()
    state = opt.init(params)
    with on_an_accelerator(platform):
        for i in range(3):
            params, state = step(opt, grads_of(params, i), state, params)
    return params, state


@law({"ScaleByAdam", "Lion"}, ROWS)
def test_a_second_pass_changes_nothing(row):
    opt = stored(row())
    assert_equal(train(opt, "cuda"), train(opt, "tpu"))


def barriers(opt, platform="cuda", shape=(8, 8)):
    params = jnp.ones(shape)
    step = jax.jit(opt.step).trace(params, opt.init(params), params)
    text = step.lower(lowering_platforms=(platform,)).as_text()
    return text.count("stablehlo.optimization_barrier")


def test_which_steps_take_two_passes():
    adam, muon = eqopt.Adam(0.1), eqopt.Muon(0.1)
    assert barriers(stored(adam)) == barriers(stored(adam, STORAGES["float8"])) == 1
    assert barriers(stored(adam), "tpu") == 0
    # Two codes of 4 bits share a byte, and XLA merges neither pass with the packing.
    assert barriers(stored(adam, STORAGES["4 bits"])) == 0
    # Products of matrices, and norms of leaves, are not worth computing twice.
    assert barriers(stored(muon)) == barriers(stored(eqopt.LAMB(0.1))) == 0


def test_small_leaves_take_one_pass(monkeypatch):
    monkeypatch.setattr(narrowing, "_LARGE", 70)
    opt = stored(eqopt.Adam(0.1))
    assert [barriers(opt, shape=shape) for shape in ((3, 23), (2, 35))] == [0, 1]
