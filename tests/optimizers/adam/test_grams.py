"""Grams, beyond the laws."""

import jax
import jax.numpy as jnp
import numpy as np

import eqopt


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
