"""Where the sign optimizers depart from Optax on purpose, on both sides."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_rprop_is_not_one_step_late():
    """The step sizes agree, but what Optax applies is the update of the step before."""
    ours, theirs = eqopt.ScaleByRprop(0.1), optax.scale_by_rprop(0.1)
    p = jnp.zeros(50)
    state, their_state = ours.init(p), theirs.init(p)
    last = np.zeros(50)
    for i in range(6):
        g = jr.normal(jr.key(i), p.shape)
        turned = np.asarray(g) * last < 0
        u, state = ours.update(g, state, p)
        their_u, their_state = theirs.update(g, their_state, p)
        np.testing.assert_allclose(state.step_sizes, their_state.step_sizes, 1e-6)
        np.testing.assert_allclose(state.prev_updates, their_state.prev_updates, 1e-6)
        np.testing.assert_allclose(their_u, np.where(turned, 0, last), 1e-6)
        np.testing.assert_allclose(u, state.prev_updates)
        last = np.asarray(u)


@pytest.mark.slow
def test_rprop_of_tiny_gradients():
    """The product of two float32 numbers of this size is zero."""
    p, g = jnp.zeros(1), jnp.full(1, 1e-30)
    for opt, expected in (
        (eqopt.ScaleByRprop(0.1), 0.12),
        (optax.scale_by_rprop(1e-15, min_step_size=0.0), 1e-15),
    ):
        state = opt.init(p)
        for _ in range(2):
            _, state = opt.update(g, state, p)
        np.testing.assert_allclose(state.step_sizes, expected, 1e-6)


@pytest.mark.slow
def test_rprop_starts_within_its_bounds():
    """As torch does."""
    p, g = jnp.zeros(1), jnp.ones(1)
    for opt, expected in (
        (eqopt.ScaleByRprop(0.5, max_step_size=0.2), 0.2),
        (optax.scale_by_rprop(0.5, max_step_size=0.2), 0.5),
    ):
        _, state = opt.update(g, opt.init(p), p)
        np.testing.assert_allclose(state.step_sizes, expected, 1e-6)
