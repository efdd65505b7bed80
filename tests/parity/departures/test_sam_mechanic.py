"""Where sharpness-aware minimization and Mechanic depart from Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")

START = jnp.array([1.0, -2.0])


def sam(inner, **arguments):
    """SAM as in the paper, in Optax."""
    climb = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    return optax.contrib.sam(inner, climb, **arguments)


def updates_of(opt, grads, params):
    """The updates of some steps, and the parameters after them."""
    state, update, found = opt.init(params), jax.jit(opt.update), []
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
        found.append(updates)
    return jnp.stack(found), params


def test_sam_with_a_period_of_1_is_the_inner_optimizer():
    """Optax's second step starts where the first one did."""
    grads = [jnp.ones(2)] * 2
    _, inner = updates_of(eqopt.SGD(0.1), grads, START)
    _, ours = updates_of(eqopt.SAM(eqopt.SGD(0.1), sync_period=1), grads, START)
    _, theirs = updates_of(sam(optax.sgd(0.1), sync_period=1), grads, START)
    np.testing.assert_allclose(ours, inner, rtol=1e-6)
    np.testing.assert_allclose(theirs, START - 0.1, rtol=1e-6)


def test_sam_with_an_adversary_that_gives_nan():
    """A zero gradient in an adversarial step, where Optax's normalization gives NaN."""
    grads = [jnp.ones(2), jnp.zeros(2)]
    ours, _ = updates_of(eqopt.SAM(eqopt.SGD(0.1)), grads, START)
    theirs, _ = updates_of(sam(optax.sgd(0.1)), grads, START)
    assert bool(jnp.isfinite(ours).all())
    assert bool(jnp.isnan(theirs[1]).all())


@pytest.mark.slow
def test_mechanic_agrees_except_for_eps(x64):
    """With defaults, and an eps that is negligible compared with the factor."""
    with x64():
        params = START.astype(jnp.float64)
        grads = [1 + jnp.cos(7.0 * t + jnp.arange(2.0)) for t in range(40)]
        ours, _ = updates_of(eqopt.Mechanic(eqopt.Adam(1.0), eps=1e-14), grads, params)
        theirs, _ = updates_of(
            optax.contrib.mechanize(optax.adam(1.0), eps=1e-14), grads, params
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        assert jnp.abs(ours[-1]).max() > 100 * jnp.abs(ours[1]).max()


def test_mechanic_with_eps_forgets_no_updates(x64):
    """Optax takes eps / (sum(s) + eps), here 1%, of their sum away in each step."""
    with x64():
        params, grads = START.astype(jnp.float64), [jnp.ones(2)] * 2
        ours, theirs = (
            updates_of(opt, grads, params)[0][:, 0]
            for opt in (
                eqopt.Mechanic(eqopt.SGD(1.0)),
                optax.contrib.mechanize(optax.sgd(1.0)),
            )
        )
        # The factor is s_init after the first step: it has measured nothing yet.
        np.testing.assert_allclose(ours[0], -1e-6, rtol=1e-6)
        np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-6)
        state = optax.contrib.mechanize(optax.sgd(1.0)).init(params)
        assert np.isclose(1e-8 / (state.s.sum() / 6 + 1e-8), 0.01, rtol=0.02)
        assert abs(theirs[1] / ours[1] - 1) > 1e-3


@pytest.mark.slow
def test_mechanic_moves_parameters_of_half_precision():
    """The sum keeps changes that are less than half of a parameter's last digit."""
    params = jnp.ones(2, jnp.bfloat16)
    grads = [jnp.ones(2, jnp.bfloat16)] * 100
    _, ours = updates_of(eqopt.Mechanic(eqopt.SGD(1.0)), grads, params)
    _, theirs = updates_of(optax.contrib.mechanize(optax.sgd(1.0)), grads, params)
    assert bool(jnp.all(ours < 0.5))
    np.testing.assert_array_equal(theirs, params)
