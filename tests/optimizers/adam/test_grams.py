"""Grams, beyond the laws."""

import jax
import jax.numpy as jnp
import numpy as np

import eqopt

from ..trajectory import START, trajectory


def test_the_first_steps_are_adamw_steps():
    """As long as gradient and momentum have the same sign, and `eps` is zero."""
    grads = [np.array([1.0, -2.0, 3.0, 4.0, -0.1]) * scale for scale in (1.0, 0.5, 2.0)]
    grams = trajectory(eqopt.Grams(0.1, eps=0.0, weight_decay=0.5), grads, START)
    adam = trajectory(eqopt.AdamW(0.1, eps=0.0, weight_decay=0.5), grads, START)
    np.testing.assert_allclose(grams, adam, rtol=1e-5)


def test_epsilon_is_added_to_the_root_before_its_correction():
    opt = eqopt.ScaleByGrams(b2=0.99, eps=0.1)
    u, _ = opt.update(jnp.array([2.0]), opt.init(jnp.ones(1)))
    np.testing.assert_allclose(u, 0.1 * 2 / (0.1 * 2 + 0.1), rtol=1e-5)


def test_the_gradient_gives_the_direction():
    """If a gradient changes its sign, so does the update; the momentum does not."""
    opt, params = eqopt.ScaleByGrams(), jnp.ones(3)
    state = opt.init(params)
    for _ in range(5):
        _, state = opt.update(jnp.ones(3), state)
    u, state = opt.update(jnp.array([1.0, -1.0, 0.0]), state)
    assert bool((state.mu > 0).all())
    np.testing.assert_array_equal(jnp.sign(u), [1, -1, 0])


def test_complex_numbers_have_a_direction():
    opt, g = eqopt.ScaleByGrams(eps=0.0), jnp.array([3 + 4j])
    u, _ = jax.jit(opt.update)(g, opt.init(g))
    np.testing.assert_allclose(u, [0.6 + 0.8j], rtol=1e-5)
