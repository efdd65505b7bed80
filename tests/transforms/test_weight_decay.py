"""How weight decay depends on the learning rate, and where it waits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..parity.by_hand import B1, B2, EPS, adam_by_hand


ETAS = (0.5, 0.25, 0.0, 0.125)
# What is taken off, for a decay of 0.2 and a learning rate of at most 0.5.
TAKEN_OFF = {
    "decoupled": lambda eta: 0.2 * eta,
    "corrected": lambda eta: 0.2 * eta**2 / 0.5,
    "fully_decoupled": lambda eta: 0.2 * eta / 0.5,
    "independent": lambda eta: 0.2 if eta else 0.0,
    "squared": lambda eta: 0.2 * eta**2,
}


def eta(count):
    return jnp.asarray(ETAS)[count]


def how(mode, **more):
    return eqopt.AddDecayedWeights(0.2, mode=mode, max_learning_rate=0.5, **more)


@pytest.mark.parametrize("mode", TAKEN_OFF)
def test_modes(mode):
    """With gradients of zero there is only the decay."""
    decay = how(mode, learning_rate=eta)
    opt = eqopt.Chain(decay, eqopt.ScaleByLearningRate(eta))
    params = {"w": jnp.array([1.0, -2.0])}
    state = opt.init(params)
    step = eqx.filter_jit(opt.step)
    for taken_off in map(TAKEN_OFF[mode], ETAS):
        before = params["w"]
        params, state = step({"w": jnp.zeros(2)}, state, params)
        np.testing.assert_allclose(params["w"], (1 - taken_off) * before, rtol=1e-6)


@pytest.mark.parametrize("cautious", [False, True])
@pytest.mark.parametrize("mode", TAKEN_OFF)
@pytest.mark.costly
def test_trajectory(mode, cautious, x64):
    """AdamW, with a schedule, against NumPy."""
    rng = np.random.default_rng(0)
    p, *grads = rng.normal(size=(31, 7))
    rates = 0.5 * rng.uniform(size=30)
    decay = how(mode, cautious=cautious)
    with x64():
        schedule = lambda count: jnp.asarray(rates)[count]
        opt = eqopt.AdamW(schedule, B1, B2, EPS, weight_decay=decay)
        params = jnp.asarray(p)
        state, step = opt.init(params), jax.jit(opt.step)
        directions = adam_by_hand(grads, B1, B2, EPS)
        for g, u, rate in zip(grads, directions, rates, strict=True):
            params, state = step(jnp.asarray(g), state, params)
            decays = u * p >= 0 if cautious else 1.0
            p = p - rate * u - TAKEN_OFF[mode](rate) * decays * p
            np.testing.assert_allclose(params, p, rtol=1e-9, atol=1e-12)


def test_cautious():
    """An entry that the update already makes larger is left alone."""
    opt = eqopt.AddDecayedWeights(0.5, cautious=True)
    turned = np.exp(1j * np.arange(6)).astype(np.complex64)
    p = jnp.asarray(turned * [2, -2, 2, -2, 2, 0])
    g = jnp.asarray(turned * [1, 1, -1, -1, 0, 1])
    found, _ = opt.update(g, opt.init(p), p)
    np.testing.assert_allclose(found, turned * [2, 1, -1, -2, 1, 1], atol=1e-6)


def test_its_mask_or_that_of_the_optimizer():
    mask = {"w": True, "b": False}
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    how = eqopt.AddDecayedWeights
    for opt in (
        eqopt.AdamW(0.5, weight_decay=how(0.2, mask)),
        eqopt.AdamW(0.5, weight_decay=how(0.2), mask=mask),
    ):
        new, _ = opt.step(zeros, opt.init(params), params)
        np.testing.assert_allclose(new["w"], 0.9)
        np.testing.assert_array_equal(new["b"], 1.0)
    with pytest.raises(
        ValueError, match=r"AdamW.*alone defines the decay and its mask"
    ):
        eqopt.AdamW(0.5, weight_decay=how(0.2, mask), mask=mask)


@pytest.mark.parametrize(
    "cls", [eqopt.ScaleByAdamP, eqopt.ScaleBySGDP, eqopt.ScaleByStableAdam]
)
def test_a_part_with_its_own_decay_says_what_is_missing(cls):
    opt = cls(weight_decay=how("squared"))
    with pytest.raises(ValueError, match="`mode='squared'` needs `learning_rate`"):
        opt.init(jnp.ones(2))
    with pytest.raises(ValueError, match=f"{cls.__name__}.*its mask"):
        cls(weight_decay=how("decoupled", mask=True), mask=True).init(jnp.ones(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (
                lambda mode=mode: eqopt.AddDecayedWeights(0.1, mode=mode),
                f"`mode='{mode}'` needs `max_learning_rate`",
            )
            for mode in ("corrected", "fully_decoupled")
        ),
        (
            lambda: eqopt.AdamW(0.1, weight_decay=eqopt.SGD(0.1)),
            "AdamW.*: `weight_decay` must be a number, .* is SGD",
        ),
        (
            lambda: eqopt.AddDecayedWeights(
                eqopt.AddDecayedWeights(0.1), cautious=True
            ),
            "AddDecayedWeights` that alone defines the decay",
        ),
        (
            lambda: how("squared").init(jnp.ones(2)),
            "`mode='squared'` needs `learning_rate`",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
