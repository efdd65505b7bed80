"""Where other methods depart from Optax on purpose, asserted on both sides."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt

from .steps import finite, last, updates_of


pytestmark = pytest.mark.usefixtures("standard_promotion")


ZEROS_IN_FLOAT16 = {
    "adam": (eqopt.Adam(0.1), optax.adam(0.1)),
    "nadam": (eqopt.NAdam(0.1), optax.nadam(0.1)),
    "adamax": (eqopt.Adamax(0.1), optax.adamax(0.1)),
    "amsgrad": (eqopt.AMSGrad(0.1), optax.amsgrad(0.1)),
    "adabelief": (eqopt.AdaBelief(0.1), optax.adabelief(0.1)),
    "rmsprop": (eqopt.RMSprop(0.1), optax.rmsprop(0.1)),
    "centered": (eqopt.RMSprop(0.1, centered=True), optax.rmsprop(0.1, centered=True)),
    "novograd": (eqopt.ScaleByNovoGrad(), optax.scale_by_novograd()),
    "factored": (eqopt.ScaleByFactoredRMS(), optax.scale_by_factored_rms()),
    "cocob": (eqopt.ScaleByCOCOB(), optax.contrib.scale_by_cocob()),
}
ZEROS_WITHOUT_EPS = {
    "adam": (eqopt.Adam, optax.adam),
    "adamax": (eqopt.Adamax, optax.adamax),
    "rmsprop": (eqopt.RMSprop, optax.rmsprop),
    "madgrad": (eqopt.MADGRAD, optax.contrib.madgrad),
}


@pytest.mark.parametrize("name", ZEROS_IN_FLOAT16)
@pytest.mark.costly
def test_zero_gradients_in_float16(name):
    """A denominator never underflows: an epsilon of 1e-8 is zero there."""
    zeros = [jnp.zeros(2, jnp.float16)] * 2
    ours, theirs = (updates_of(opt, zeros) for opt in ZEROS_IN_FLOAT16[name])
    assert not jnp.stack(ours).any()
    assert not finite(theirs)


@pytest.mark.parametrize("name", ZEROS_WITHOUT_EPS)
def test_zero_gradients_without_eps(name):
    zeros = [jnp.zeros(2)] * 2
    ours, theirs = (
        jnp.stack(updates_of(make(0.1, eps=0.0), zeros))
        for make in ZEROS_WITHOUT_EPS[name]
    )
    assert not ours.any()
    assert jnp.isnan(theirs).all()


def test_schedules_of_optimism():
    params, grads = jnp.ones(1), [jnp.ones(1)] * 2
    fade = lambda count: 1.0 / (1 + jnp.asarray(count, jnp.float32))
    ours = updates_of(eqopt.OptimisticGradientDescent(1.0, alpha=fade), grads, params)
    np.testing.assert_allclose(np.stack(ours), [[-1.0], [-0.5]])
    with pytest.raises(TypeError):  # its signature says that it takes them
        updates_of(optax.optimistic_gradient_descent(1.0, alpha=fade), grads, params)


def test_adadelta_without_a_learning_rate_descends():
    params = jnp.ones(2)
    assert (updates_of(eqopt.Adadelta(), [params])[0] < 0).all()
    assert (updates_of(optax.adadelta(), [params])[0] > 0).all()


def test_a_variance_is_not_negative():
    """Of a constant gradient it is zero up to rounding."""
    grads = [jnp.full(20, 3.3) * jnp.arange(1, 21)] * 200
    ours, theirs = eqopt.ScaleByStddev(), optax.scale_by_stddev()
    ours, theirs = (updates_of(opt, grads) for opt in (ours, theirs))
    assert finite(ours) and jnp.isnan(jnp.stack(theirs)).any()


def test_a_nan_in_the_sum_is_seen():
    """In Optax, the parameter then gets only zero updates, and nothing shows why."""
    grads = [jnp.array([jnp.nan]), jnp.ones(1)]
    assert jnp.isnan(updates_of(eqopt.Adagrad(0.1), grads)[1])
    assert updates_of(optax.adagrad(0.1), grads)[1] == 0


@pytest.mark.slow
def test_sm3_takes_scalars_schedules_and_complex_parameters():
    schedule, scalar = optax.linear_schedule(0.1, 0.0, 5), jnp.ones(())
    assert updates_of(eqopt.SM3(schedule), [scalar])[0] < 0
    with pytest.raises(TypeError):
        updates_of(optax.sm3(schedule), [scalar])
    with pytest.raises(IndexError):
        updates_of(optax.sm3(0.1), [scalar])
    whirl = jnp.array([3 + 4j])
    # The first update is (1 - b1) g / |g|.
    expected = -0.1 * 0.1 * whirl / 5
    assert jnp.allclose(updates_of(eqopt.SM3(0.1), [whirl])[0], expected)
    with pytest.raises(ValueError, match="complex"):
        optax.sm3(0.1).init(whirl)


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


def first_update(opt, g, p, value):
    return last(opt, [g], p, lambda i: {"value": value})[0]


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
    [(eqopt.PolyakSGD(), optax.polyak_sgd()), (eqopt.MoMo(), optax.contrib.momo())],
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


ONES = jnp.ones(2)
# Where Optax divides 0 by 0: learning rates and gradients. The weights are zero, and so
# is the sum of weighted gradients; or the scalars of the state, which are float32 here,
# and float16 there.
ZERO_OVER_ZERO = {
    "a warm-up from zero": (optax.linear_schedule(0.0, 1.0, 4), [ONES] * 3),
    "a first gradient of zero": (1.0, [0 * ONES, ONES]),
    "float16": (1.0, [jnp.array([1e-2, 0.0], jnp.float16)] * 3),
}


@pytest.mark.parametrize("name", ZERO_OVER_ZERO)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.Prodigy, optax.contrib.prodigy),
        (eqopt.DAdaptAdamW, optax.contrib.dadapt_adamw),
    ],
)
@pytest.mark.costly
def test_zero_over_zero(ours, theirs, name):
    rate, grads = ZERO_OVER_ZERO[name]
    assert finite(last(ours(rate), grads, grads[-1]))
    assert not finite(last(theirs(rate), grads, grads[-1]))


def test_dog_after_a_first_step_that_moved_nothing():
    """A distance of zero stays zero, unless the first step is repeated."""
    ones = jnp.ones(2)
    for cls, moves in ((eqopt.DoG, True), (optax.contrib.dog, False)):
        opt = cls(init_step=("learning_rate", 0.1))
        _, state = opt.update(0 * ones, opt.init(ones), ones)
        assert bool(opt.update(ones, state, ones)[0].any()) == moves
