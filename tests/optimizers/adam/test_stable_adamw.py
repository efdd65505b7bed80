"""StableAdamW, beyond the laws."""

import jax.numpy as jnp
import numpy as np

import eqopt

from ..trajectory import GRADS, START, trajectory


def test_a_spike_makes_the_step_and_the_decay_shorter():
    """Against NumPy, from the equations. One leaf does not decay."""
    b1, b2, eps, decay = 0.8, 0.95, 1e-3, 0.3
    grads = [*5 * GRADS, 100 * GRADS[0]]
    params = {"w": jnp.asarray(START, jnp.float32), "b": jnp.ones(5)}
    mask = {"w": True, "b": False}
    opt = eqopt.StableAdamW(0.1, b1, b2, eps, decay, mask)
    state = opt.init(params)
    p, q, m, v, rms = START, np.ones(5), 0, 0, 0
    for t, g in enumerate(grads, 1):
        u = jnp.asarray(g, jnp.float32)
        params, state = opt.step({"w": u, "b": u}, state, params)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        v_hat = v / (1 - b2**t)
        d = m / (1 - b1**t) / (np.sqrt(v_hat) + eps)
        rms = np.sqrt(np.mean(g**2 / np.maximum(v_hat, eps**2)))
        rate = 0.1 / max(1, rms)
        p, q = (1 - rate * decay) * p - rate * d, q - rate * d
        np.testing.assert_allclose(params["w"], p, 2e-5, 1e-6)
        np.testing.assert_allclose(params["b"], q, 2e-5, 1e-6)
    assert rms > 2


def test_the_rate_of_a_leaf_is_its_own():
    """A spike in one leaf does not slow down the other one."""
    params = {"calm": jnp.ones(3), "spiky": jnp.ones(3)}
    opt = eqopt.ScaleByStableAdam(b1=0.0)
    state = opt.init(params)
    u = params
    for scale in [1.0] * 20 + [100.0]:
        grads = {"calm": jnp.ones(3), "spiky": jnp.full(3, scale)}
        u, state = opt.update(grads, state)
    np.testing.assert_allclose(u["calm"], 1, rtol=1e-5)
    # Without momentum, r is the root mean square of d: both are 10 before division.
    np.testing.assert_allclose(u["spiky"], 1, rtol=1e-5)


def test_zeros_with_a_tiny_epsilon_stay_zeros():
    opt = eqopt.StableAdamW(0.1, eps=1e-30, weight_decay=0.0)
    path = trajectory(opt, [np.zeros(5)] * 2, START)
    np.testing.assert_array_equal(path[-1], START.astype(np.float32))
