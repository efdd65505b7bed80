"""AdaMuon, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def test_updates_have_a_constant_rms(x64):
    """For any gradients, from the first step on."""
    with x64():
        opt = eqopt.ScaleByAdaMuon()
        state = opt.init(jnp.zeros((6, 4)))
        for t in range(4):
            g = np.random.default_rng(t).normal(size=(6, 4)) * 10.0 ** (3 * t - 6)
            updates, state = opt.update(jnp.asarray(g), state)
            rms = jnp.sqrt(jnp.mean(updates**2))
            np.testing.assert_allclose(rms, 0.2, rtol=1e-7)


def test_the_first_step_depends_only_on_signs(x64):
    with x64():
        opt = eqopt.ScaleByAdaMuon()
        g = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)))
        state = opt.init(g)
        updates, _ = opt.update(g, state)
        same, _ = opt.update(jnp.sign(g), state)
        np.testing.assert_allclose(same, updates, rtol=1e-12)


@pytest.mark.slow
def test_zeros_stay_zero():
    zeros = jnp.zeros((3, 4))
    opt = eqopt.ScaleByAdaMuon()
    total = lambda g: jnp.sum(opt.update(g, opt.init(g))[0])
    assert not opt.update(zeros, opt.init(zeros))[0].any()
    assert jnp.isfinite(jax.grad(total)(zeros)).all()
