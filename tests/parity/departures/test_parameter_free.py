"""Where the optimizers without a learning rate to tune depart from Optax: 0 / 0."""

import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")

PAIRS = {
    "prodigy": (eqopt.Prodigy, optax.contrib.prodigy),
    "dadapt_adamw": (eqopt.DAdaptAdamW, optax.contrib.dadapt_adamw),
}


def is_finite(opt, grads, params):
    updates, state = None, opt.init(params)
    for g in grads:
        updates, state = opt.update(g, state, params)
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, state)))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.costly
def test_a_warm_up_from_zero(name):
    """The weights are zero, and so is the sum of weighted gradients."""
    ours, theirs = PAIRS[name]
    warm_up, grads = optax.linear_schedule(0.0, 1.0, 4), [jnp.ones(2)] * 3
    assert is_finite(ours(warm_up), grads, grads[0])
    assert not is_finite(theirs(warm_up), grads, grads[0])


@pytest.mark.parametrize("name", PAIRS)
def test_a_zero_gradient_in_the_first_step(name):
    ours, theirs = PAIRS[name]
    grads = [jnp.zeros(2), jnp.ones(2)]
    assert is_finite(ours(), grads, grads[1])
    assert not is_finite(theirs(), grads, grads[1])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.costly
def test_float16(name):
    """The scalars of the state are float32 here, and float16 there."""
    ours, theirs = PAIRS[name]
    grads = [jnp.array([1e-2, 0.0], jnp.float16)] * 3
    assert is_finite(ours(), grads, grads[0])
    assert not is_finite(theirs(), grads, grads[0])


def test_cocob_of_float16_zero_gradients():
    """`eps=1e-8` is zero in float16: Optax divides zero by zero."""
    zeros = jnp.zeros(2, jnp.float16)
    ours, theirs = eqopt.ScaleByCOCOB(), optax.contrib.scale_by_cocob()
    assert not ours.update(zeros, ours.init(zeros), zeros)[0].any()
    assert jnp.isnan(theirs.update(zeros, theirs.init(zeros), zeros)[0]).all()


def test_dog_after_a_first_step_that_moved_nothing():
    """A distance of zero stays zero, unless the first step is repeated."""
    ones = jnp.ones(2)
    for cls, moves in ((eqopt.DoG, True), (optax.contrib.dog, False)):
        opt = cls(init_step=("learning_rate", 0.1))
        _, state = opt.update(0 * ones, opt.init(ones), ones)
        assert bool(opt.update(ones, state, ones)[0].any()) == moves
