"""CAME, beyond the laws and the formulas in its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

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


@pytest.mark.slow
def test_kernels_of_convolutions():
    """Dimension numbers, given to `init`, turn a kernel into a matrix."""
    numbers = eqopt.MatrixDimensionNumbers(0, (1, 2, 3))
    opt = eqopt.ScaleByCAME(0.5, 0.8, 0.7, 1e-3, 1e-2, weight_dimension_numbers=numbers)
    g = jnp.asarray(normal(4, 3, 2, 2), jnp.float32)
    flat = g.reshape(4, 12)
    state, of_flat = opt.init(g), eqopt.ScaleByCAME(0.5, 0.8, 0.7, 1e-3, 1e-2)
    assert state.v_row.shape == (4, 1, 1, 1) and state.s_col.shape == (1, 3, 2, 2)
    updates, _ = opt.update(g, state)
    expected, _ = of_flat.update(flat, of_flat.init(flat))
    np.testing.assert_allclose(updates.reshape(4, 12), expected, rtol=1e-5)


@pytest.mark.slow
def test_derivatives_at_zero():
    def loss(g):
        opt, updates = eqopt.ScaleByCAME(), g
        state = opt.init(g)
        for _ in range(3):
            updates, state = opt.update(g, state)
        return updates.sum()

    for g in (jnp.zeros((3, 4)), jnp.zeros(3)):
        assert jnp.isfinite(jax.grad(loss)(g)).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (1, 5), (5, 1)])
@pytest.mark.costly
def test_small_leaves(shape):
    g = jnp.ones(shape)
    opt = eqopt.ScaleByCAME()
    state = opt.init(g)
    for scale in (0.0, 1.0, -2.0):
        updates, state = opt.update(scale * g, state)
        assert updates.shape == shape
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((updates, state)))
