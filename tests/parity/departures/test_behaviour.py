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
