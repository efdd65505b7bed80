"""Grokfast: what the laws do not say."""

import jax
import jax.numpy as jnp
import numpy as np

import eqopt


def outputs(opt, grads):
    state = opt.init(jnp.zeros(np.shape(grads[0])))
    for g in grads:
        updates, state = opt.update(jnp.asarray(g, jnp.float32), state)
        yield updates


def by_hand(grads, alpha, lamb):
    e = grads[0]
    for g in grads:
        e = alpha * e + (1 - alpha) * g
        yield g + lamb * e


def test_updates_by_hand():
    grads = np.random.default_rng(0).normal(size=(30, 5)) * [1, 10, 1e-2, 1, 0]
    ours = outputs(eqopt.Grokfast(0.7, 3.0), grads)
    for updates, expected in zip(ours, by_hand(grads, 0.7, 3.0), strict=True):
        np.testing.assert_allclose(updates, expected, rtol=1e-5, atol=1e-6)


def test_constants_are_amplified_exactly():
    """Also after many steps, in which an average could drift."""
    opt, g = eqopt.Grokfast(0.98, 2.0), jnp.array([0.1, -1 / 3, 1e-20, 0.0])
    update = jax.jit(opt.update)
    state = opt.init(g)
    for _ in range(30):
        updates, state = update(g, state)
        np.testing.assert_array_equal(state.ema, g)
        np.testing.assert_allclose(updates, 3 * g, rtol=2e-7)
