"""Step by step against the formulas in the rows, in NumPy and float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from ..interpreter import interpreted
from ..methods import METHODS
from .by_hand import gradients


ALL = {
    name: case for method in METHODS.values() for name, case in method.by_hand.items()
}
CASES = {name: case for name, case in ALL.items() if case.shape is None}
OF_MATRICES = {name: case for name, case in ALL.items() if case.shape is not None}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly
def test_updates(name, x64):
    opt, by_hand, _ = CASES[name]
    grads = gradients(30)
    with x64():
        state, update = opt.init(jnp.zeros(4)), interpreted(opt.update)
        for g, expected in zip(grads, by_hand(grads), strict=True):
            updates, state = update(jnp.asarray(g), state)
            np.testing.assert_allclose(updates, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", OF_MATRICES)
@pytest.mark.costly
def test_updates_of_matrices(name, x64):
    """In float64, in which slightly different iterations would not agree."""
    opt, by_hand, shape = OF_MATRICES[name]
    assert shape is not None
    grads = np.random.default_rng(0).normal(size=(30, *shape))
    with x64():
        state, update = opt.init(jnp.zeros(shape)), interpreted(opt.update)
        for g, expected in zip(grads, by_hand(grads), strict=True):
            updates, state = update(jnp.asarray(g), state)
            np.testing.assert_allclose(updates, expected, rtol=1e-7, atol=1e-9)
