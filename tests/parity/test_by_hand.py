"""Step by step against formulas in NumPy and float64, which stand in the rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from ..methods import METHODS
from .by_hand import gradients


CASES = {
    name: case for method in METHODS.values() for name, case in method.by_hand.items()
}


@pytest.mark.parametrize("name", CASES)
def test_updates(name):
    opt, by_hand = CASES[name]
    grads = gradients(12)
    state = opt.init(jnp.zeros(4))
    for g, expected in zip(grads, by_hand(grads), strict=True):
        updates, state = opt.update(jnp.asarray(g, jnp.float32), state)
        np.testing.assert_allclose(updates, expected, rtol=2e-5, atol=1e-7)
