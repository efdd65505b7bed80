"""Where step sizes from the loss depart from Optax on purpose, on both sides."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def first_update(opt, g, p, value):
    return opt.update(g, opt.init(p), p, value=value)[0]


def test_polyak_scales_below_the_cap():
    """Half as far, not twice as far, with `scaling=0.5`."""
    p, g, value = jnp.zeros(2), jnp.array([3.0, 4.0]), jnp.asarray(2.0)
    for make, factor in ((eqopt.PolyakSGD, 0.5), (optax.polyak_sgd, 2.0)):
        full = first_update(make(scaling=1.0), g, p, value)
        scaled = first_update(make(scaling=0.5), g, p, value)
        np.testing.assert_allclose(full, -2 / 25 * g, 1e-6)
        np.testing.assert_allclose(scaled, factor * full, 1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.PolyakSGD(), optax.polyak_sgd()),
        (eqopt.MoMo(), optax.contrib.momo()),
    ],
    ids=["polyak", "momo"],
)
def test_small_gradients_are_not_zero(ours, theirs):
    """Optax stops where the squared norm is below the rounding error of float64."""
    p, g, value = jnp.zeros(2), jnp.full(2, 1e-9), jnp.asarray(1.0)
    np.testing.assert_allclose(first_update(ours, g, p, value), -g, 1e-6)
    assert not first_update(theirs, g, p, value).any()


@pytest.mark.parametrize(
    ("ours", "theirs", "direction"),
    [
        (eqopt.MoMo, optax.contrib.momo, lambda g: g),
        (eqopt.MoMoAdam, optax.contrib.momo_adam, jnp.sign),
    ],
    ids=["momo", "momo_adam"],
)
def test_momo_decays_as_in_the_paper(ours, theirs, direction):
    """p' = (p - tau d) / (1 + alpha lambda); in Optax, p / (1 + alpha lambda) - tau d."""
    p, g, value = jnp.array([1.0, -2.0]), jnp.array([0.5, 1.0]), jnp.asarray(50.0)
    arguments = {"learning_rate": 0.1, "weight_decay": 5.0}  # the cap is reached
    after = p + first_update(ours(**arguments), g, p, value)
    np.testing.assert_allclose(after, (p - 0.1 * direction(g)) / 1.5, 1e-5)
    after = p + first_update(theirs(**arguments), g, p, value)
    np.testing.assert_allclose(after, p / 1.5 - 0.1 * direction(g), 1e-5)
