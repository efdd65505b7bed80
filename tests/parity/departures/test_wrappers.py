"""Where wrappers depart from Optax on purpose, asserted on both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt

from .steps import traces


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


START = jnp.array([1.0, -2.0])


def sam(inner, **arguments):
    """SAM as in the paper, in Optax."""
    climb = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    return optax.contrib.sam(inner, climb, **arguments)


def trained(opt, grads, params):
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
    _, inner = trained(eqopt.SGD(0.1), grads, START)
    _, ours = trained(eqopt.SAM(eqopt.SGD(0.1), sync_period=1), grads, START)
    _, theirs = trained(sam(optax.sgd(0.1), sync_period=1), grads, START)
    np.testing.assert_allclose(ours, inner, rtol=1e-6)
    np.testing.assert_allclose(theirs, START - 0.1, rtol=1e-6)


def test_sam_with_an_adversary_that_gives_nan():
    """A zero gradient in an adversarial step, where Optax's normalization gives NaN."""
    grads = [jnp.ones(2), jnp.zeros(2)]
    ours, _ = trained(eqopt.SAM(eqopt.SGD(0.1)), grads, START)
    theirs, _ = trained(sam(optax.sgd(0.1)), grads, START)
    assert bool(jnp.isfinite(ours).all())
    assert bool(jnp.isnan(theirs[1]).all())


def test_mechanic_with_eps_forgets_no_updates(x64):
    """Optax takes eps / (sum(s) + eps), here 1%, of their sum away in each step."""
    with x64():
        params, grads = START.astype(jnp.float64), [jnp.ones(2)] * 2
        ours, theirs = (
            trained(opt, grads, params)[0][:, 0]
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
    _, ours = trained(eqopt.Mechanic(eqopt.SGD(1.0)), grads, params)
    _, theirs = trained(optax.contrib.mechanize(optax.sgd(1.0)), grads, params)
    assert bool(jnp.all(ours < 0.5))
    np.testing.assert_array_equal(theirs, params)


def test_weights_are_those_of_the_steps_that_were_made():
    """From schedule(0) on, as inside; Optax's weights are one step ahead."""
    params = jnp.ones(2)
    schedule = lambda count: jnp.array([0.1, 0.2, 0.4])[count]
    ours = eqopt.ScheduleFree(eqopt.SGD(schedule), schedule)
    theirs = optax.contrib.schedule_free(optax.sgd(schedule), schedule)
    _, state = ours.update(params, ours.init(params), params)
    _, their_state = theirs.update(params, theirs.init(params), params)
    np.testing.assert_allclose(state.z, their_state.z)  # both made a step of 0.1
    np.testing.assert_allclose(state.max_lr, 0.1)
    np.testing.assert_allclose(their_state.max_lr, 0.2)


@pytest.mark.slow
def test_bfloat16_parameters_compile_once():
    assert traces(eqopt.ScheduleFreeAdamW(0.1)) == 1
    assert traces(optax.contrib.schedule_free_adamw(0.1)) > 1
