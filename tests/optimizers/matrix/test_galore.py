"""GaLore, beyond the laws and the comparison with Optax."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (4, 4)])
@pytest.mark.costly
def test_by_hand(shape):
    """The paper's algorithm with Adam: the short side is projected."""
    opt = eqopt.GaLore(0.1, rank=2, update_proj_gap=2, scale=0.25, weight_decay=0.5)
    params = jr.normal(jr.key(0), shape)
    state, p = opt.init(params), np.asarray(params, np.float64)
    m = v = projector = np.zeros(())
    for t in range(1, 6):
        grad = jr.normal(jr.key(t), shape)
        params, state = opt.step(grad, state, params)
        g = np.asarray(grad, np.float64)
        g = g if shape[0] <= shape[1] else g.T
        if (t - 1) % 2 == 0:
            u, _, _ = np.linalg.svd(g)
            found = np.asarray(eqopt.tree.get(state, "projector"))
            # Singular vectors are unique up to their signs.
            projector = u[:, :2] * np.sign(np.sum(found * u[:, :2], 0))
            np.testing.assert_allclose(found, projector, rtol=1e-3, atol=1e-4)
        r = projector.T @ g
        m, v = 0.9 * m + 0.1 * r, 0.999 * v + 0.001 * r**2
        n = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        u = 0.25 * projector @ n
        p = p - 0.1 * ((u if shape[0] <= shape[1] else u.T) + 0.5 * p)
        np.testing.assert_allclose(params, p, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (2, 3, 4)])
@pytest.mark.costly
def test_at_full_rank_updates_are_the_gradients(shape, dtype):
    numbers = eqopt.MatrixDimensionNumbers(-2, -1)
    opt = eqopt.ScaleByGaLore(
        scale=2.0, inner=eqopt.Identity(), weight_dimension_numbers=numbers
    )
    g = jr.normal(jr.key(0), shape, dtype)
    updates, _ = opt.update(g, opt.init(g))
    np.testing.assert_allclose(updates, 2 * g, rtol=1e-4, atol=1e-5)


def test_the_inner_optimizer_does_not_get_the_parameters():
    params = jnp.ones((2, 3))
    opt = eqopt.GaLore(0.1, inner=eqopt.AdamW(0.1))
    with pytest.raises(
        ValueError, match=r"the parameters are needed, but `params` is None"
    ):
        opt.update(params, opt.init(params), params)
