"""CAME, beyond the laws and the formulas in its row."""

import jax.numpy as jnp
import numpy as np

from ...methods.layerwise.came import SCALE, came_by_hand


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_a_stack_of_matrices():
    """Each matrix is separate, but the whole leaf is clipped together."""
    grads = [normal(2, 6, 4), 3 * normal(2, 6, 4)]
    state = SCALE.init(jnp.zeros((2, 6, 4)))
    assert state.v_row.shape == (2, 6, 1) and state.v_col.shape == (2, 1, 4)
    for g, expected in zip(grads, came_by_hand(grads), strict=True):
        updates, state = SCALE.update(jnp.asarray(g, jnp.float32), state)
        np.testing.assert_allclose(updates, expected, rtol=1e-4)
