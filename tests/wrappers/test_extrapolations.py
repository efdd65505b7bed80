"""Averages away from which gradients are taken, compared with their equations."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted


STEPS = 30
START = np.random.default_rng(0).normal(size=4)
CURVATURE = np.array([1.0, 0.5, 0.1, 2.0])
RATE, DECAY, MOMENTUM = 0.2, 0.3, 0.6


def gradient(p):
    return CURVATURE * p - 0.1


def inner():
    """It depends on the parameters and on earlier steps."""
    return eqopt.Chain(
        eqopt.Trace(MOMENTUM),
        eqopt.AddDecayedWeights(DECAY),
        eqopt.ScaleByLearningRate(RATE),
    )


def inner_by_hand():
    trace = 0

    def update(g, p):
        nonlocal trace
        trace = MOMENTUM * trace + g
        return -RATE * (trace + DECAY * p)

    return update


def trained(opt, x64):
    """After each step, the parameters and those to evaluate with."""
    with x64():
        params = jnp.asarray(START)
        state = opt.init(params)
        step = interpreted(lambda *args: opt.step(*args))
        for _ in range(STEPS):
            params, state = step(jnp.asarray(gradient(params)), state, params)
            yield np.asarray(params), np.asarray(opt.eval_params(state, params))


def assert_follows(opt, x64, by_hand):
    for found, expected in zip(trained(opt, x64), by_hand, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def plain():
    update, p = inner_by_hand(), START
    for _ in range(STEPS):
        p = p + update(gradient(p), p)
        yield p, p


def gpa(sees, mu_x=0.8, mu_y=0.7, penalty=0.0):
    update, x, z, y = inner_by_hand(), START, START, START
    for t in range(STEPS):
        z = z + update(gradient(y) + penalty * y, {"z": z, "y": y}[sees])
        x = mu_x * x + (1 - mu_x) * z
        share = float(mu_y(t)) if callable(mu_y) else mu_y
        y = share * x + (1 - share) * z
        yield y, x


@pytest.mark.parametrize("sees", ["z", "y"])
def test_gpa(sees, x64):
    assert_follows(eqopt.GPA(inner(), 0.8, 0.7, sees), x64, gpa(sees))


@pytest.mark.parametrize("sees", ["z", "y"])
@pytest.mark.costly
def test_gpa_on_a_schedule(sees, x64):
    """Each step recovers the average with the `mu_y` that made the parameters."""
    mu_y = lambda t: 0.9 - 0.1 * jnp.asarray(t % 4, float)
    opt = eqopt.Scheduled(eqopt.GPA(inner(), 0.8, mu_y, sees))
    assert_follows(opt, x64, gpa(sees, mu_y=mu_y))


def ema_nesterov(start, stop, gamma=0.8):
    update, x, y, v = inner_by_hand(), START, START, 0
    for t in range(STEPS):
        new = y + update(gradient(y), y)
        v, x = gamma * v + (1 - gamma) * (new - x), new
        is_on = start <= t + 1 and (stop is None or t + 1 < stop)
        y = x + 0.5 * is_on / (t + 2) * v
        yield y, x


@pytest.mark.parametrize(("start", "stop"), [(0, None), (5, 20)])
def test_ema_nesterov(start, stop, x64):
    beta = lambda count: 0.5 / (1 + jnp.asarray(count, float))
    opt = eqopt.EMANesterov(inner(), beta, 0.8, start, stop)
    assert_follows(opt, x64, ema_nesterov(start, stop))


def outer_nesterov(period, rate=0.7, momentum=0.5):
    update, p, slow, trace = inner_by_hand(), START, START, 0
    for t in range(1, STEPS + 1):
        p = p + update(gradient(p), p)
        if t % period == 0:
            delta = slow - p
            trace = momentum * trace + delta
            p = slow = slow - rate * (delta + momentum * trace)
        yield p, slow


@pytest.mark.parametrize("period", [1, 4])
def test_outer_nesterov(period, x64):
    opt = eqopt.OuterNesterov(inner(), period, momentum=0.5)
    assert_follows(opt, x64, outer_nesterov(period))


NEUTRAL = {
    "GPA": eqopt.GPA(inner(), 0.0),
    "EMANesterov": eqopt.EMANesterov(inner(), 0.0),
    "EMANesterov that stopped": eqopt.EMANesterov(inner(), 0.5, stop=0),
    "Lookahead": eqopt.Lookahead(inner(), 2, 1.0),
    "OuterNesterov": eqopt.OuterNesterov(inner(), 1, 1.0, 0.0),
    "OuterNesterov, several steps": eqopt.OuterNesterov(inner(), 4, 1.0, 0.0),
}


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.costly
def test_without_effect_it_is_the_inner_one(name, x64):
    """Bit for bit."""
    found, expected = trained(NEUTRAL[name], x64), trained(inner(), x64)
    for (params, _), (same, _) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(params, same)


def test_the_inner_chain_follows_its_formula(x64):
    assert_follows(inner(), x64, plain())
