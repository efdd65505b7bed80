"""Grams, beyond the laws."""

import jax
import jax.numpy as jnp
import numpy as np

import eqopt


def test_complex_numbers_have_a_direction():
    opt, g = eqopt.ScaleByGrams(eps=0.0), jnp.array([3 + 4j])
    u, _ = jax.jit(opt.update)(g, opt.init(g))
    np.testing.assert_allclose(u, [0.6 + 0.8j], rtol=1e-5)
