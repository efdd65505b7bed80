"""CAME, beyond the laws and the formulas in its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...methods.layerwise.came import SCALE, came_by_hand


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_the_first_step():
    """For uniform gradients, the residual is 0.9 of the update; its mean is biased."""
    g = 7.0 * jnp.sign(jnp.asarray(normal(5, 3), jnp.float32))
    opt = eqopt.ScaleByCAME()
    updates, _ = opt.update(g, opt.init(g))
    expected = 0.1 / (0.9 * np.sqrt(1 - 0.9999)) * jnp.sign(g)
    np.testing.assert_allclose(updates, expected, rtol=1e-3)


def test_squares_of_rank_one_are_known_exactly():
    """So each element is divided by its own root, as in a vector."""
    signs = np.sign(normal(5, 3))
    g = signs * np.exp(normal(5))[:, None] * np.exp(-2 * normal(3))
    opt = eqopt.ScaleByCAME(0.5, eps=0.0, eps_confidence=0.0, clipping_threshold=None)
    state = opt.init(jnp.zeros(g.shape))
    state_of_elements = opt.init(jnp.zeros(g.size))
    for scale in (1.0, 2.0, 0.5):
        grads = jnp.asarray(scale * g, jnp.float32)
        _, state = opt.update(grads, state)
        _, state_of_elements = opt.update(grads.ravel(), state_of_elements)
    mu = state_of_elements.mu.reshape(g.shape)
    np.testing.assert_allclose(state.mu, mu, rtol=1e-5)


def test_without_residuals_steps_explode():
    """As in the authors' code: the momentum is the update, and only `eps'` remains."""
    g = jnp.ones((3, 4))
    opt = eqopt.ScaleByCAME(b1=0.0, b3=0.5, eps_confidence=1e-8)
    updates, _ = opt.update(g, opt.init(g))
    np.testing.assert_allclose(updates, 1 / np.sqrt(0.5 * 1e-8), rtol=1e-4)


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


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (), (1, 1), (1, 5), (5, 1)])
@pytest.mark.costly
def test_small_leaves(shape):
    g = jnp.ones(shape)
    opt = eqopt.ScaleByCAME()
    state = opt.init(g)
    for scale in (0.0, 1.0, -2.0):
        updates, state = opt.update(scale * g, state)
        assert updates.shape == shape
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((updates, state)))


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


@pytest.mark.slow
def test_the_recipe():
    """It adds decoupled, masked weight decay to the updates of the block."""
    params = {"w": jnp.asarray(normal(4, 3), jnp.float32), "b": jnp.ones(3)}
    grads = jax.tree.map(jnp.sin, params)
    block = eqopt.ScaleByCAME()
    updates, _ = block.update(grads, block.init(params))
    opt = eqopt.CAME(0.1, weight_decay=0.5, mask={"w": True, "b": False})
    new, _ = opt.step(grads, opt.init(params), params)
    expected = params["w"] - 0.1 * (updates["w"] + 0.5 * params["w"])
    np.testing.assert_allclose(new["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new["b"], params["b"] - 0.1 * updates["b"], rtol=1e-5)
