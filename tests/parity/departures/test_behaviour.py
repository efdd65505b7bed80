"""Where wrappers depart from Optax on purpose, asserted on both sides."""

import jax.numpy as jnp
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_large_updates_in_float16():
    """The square of 256 is infinite there; the norm is not large."""
    updates = {"w": jnp.full(2, 256, jnp.float16)}
    skip, said = eqopt.SkipLargeUpdates(1e6)(updates, 0, None)
    assert not skip and said["norm_squared"] == 2 * 256**2
    skip, said = optax.skip_large_updates(updates, 0, None, 1e6)
    assert skip and jnp.isinf(said["norm_squared"])


def test_a_skipped_mini_step_is_no_update():
    """Even if the mini-step before completed a step."""
    skip = eqopt.SkipNotFinite(), optax.skip_not_finite
    ours = eqopt.MultiSteps(eqopt.SGD(0.1), 1, should_skip_update_fn=skip[0])
    theirs = optax.MultiSteps(optax.sgd(0.1), 1, should_skip_update_fn=skip[1])
    params = {"w": jnp.ones(2)}
    said = []
    for optimizer in (ours, theirs):
        state = optimizer.init(params)
        for gradient in (1.0, jnp.nan):
            _, state = optimizer.update({"w": jnp.full(2, gradient)}, state, params)
            said.append(bool(optimizer.has_updated(state)))
    assert said == [True, False, True, True]
