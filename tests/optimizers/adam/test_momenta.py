"""Variants of Adam with several momenta, beyond the laws and Optax."""

import jax.numpy as jnp
import numpy as np

import eqopt


def test_the_first_step_of_adopt_is_not_nan():
    """With an `eps` of zero, and a first gradient that overflows when divided."""
    opt = eqopt.ScaleByADOPT(eps=0.0, use_clipping=False)
    u, state = opt.update(jnp.array([1e38, 0.0]), opt.init(jnp.ones(2)))
    np.testing.assert_array_equal(u, 0)
    np.testing.assert_array_equal(state.mu, 0)
