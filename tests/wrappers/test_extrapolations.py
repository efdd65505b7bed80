"""Averages away from which gradients are taken, compared with their equations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted


STEPS = 30
START = np.random.default_rng(0).normal(size=4)
CURVATURE = np.array([1.0, 0.5, 0.1, 2.0])
RATE, DECAY, MOMENTUM = 0.2, 0.3, 0.6


def gradient(p, t=0):
    return CURVATURE * p - 0.1


def noisy(p, t):
    return (1 + t % 3) * (p - np.arange(4.0))


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


def trained(opt, x64, gradient=gradient):
    """After each step, the parameters and those to evaluate with."""
    with x64():
        params = jnp.asarray(START)
        state = opt.init(params)
        step = interpreted(lambda *args: opt.step(*args))
        for t in range(STEPS):
            grads = jnp.asarray(gradient(np.asarray(params), t))
            params, state = step(grads, state, params)
            yield np.asarray(params), np.asarray(opt.eval_params(state, params))


def assert_follows(opt, x64, by_hand, gradient=gradient, rtol=1e-9):
    for found, expected in zip(trained(opt, x64, gradient), by_hand, strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-12)


def gpa(sees, mu_x=0.8, mu_y=0.7):
    update, x, z, y = inner_by_hand(), START, START, START
    for t in range(STEPS):
        z = z + update(gradient(y), {"z": z, "y": y}[sees])
        x = mu_x * x + (1 - mu_x) * z
        share = float(mu_y(t)) if callable(mu_y) else mu_y
        y = share * x + (1 - share) * z
        yield y, x


def on_a_schedule(t):
    return 0.9 - 0.1 * jnp.asarray(t % 4, float)


@pytest.mark.parametrize("sees", ["z", "y"])
@pytest.mark.parametrize("mu_y", [0.7, on_a_schedule])
def test_gpa(sees, mu_y, x64):
    """Each step recovers the average with the `mu_y` that made the parameters."""
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


def soda():
    update, p = inner_by_hand(), START
    for k in range(STEPS):
        p = START / (k + 2) + (1 - 1 / (k + 2)) * p + update(gradient(p), p)
        yield p, p


def test_soda(x64):
    assert_follows(eqopt.SODA(inner()), x64, soda())


def test_soda_in_half_precision():
    """The parameters of the start are in float32, and sums are rounded once."""
    opt = eqopt.SODA(eqopt.SGD(1.0))
    params = jnp.array(2.0, jnp.bfloat16)
    state = opt.init(params)
    assert state.z.dtype == jnp.float32
    exact = 2.0
    for k in range(4):
        params, state = opt.step(params / 16, state, params)
        exact = 2 / (k + 2) + (1 - 1 / (k + 2)) * exact - float(exact) / 16
        exact = float(jnp.asarray(exact, jnp.bfloat16))
        assert float(params) == exact


def schedule_free(direction, etas, b1, power=2.0):
    """The sequences y and x of the paper, from a function of y and the step."""
    y = x = z = START
    weights = []
    for t, eta in enumerate(etas):
        z = z - eta * direction(y, t)
        weights.append(max(etas[: t + 1]) ** power)
        c = weights[-1] / sum(weights) if any(weights) else 0.0
        x = (1 - c) * x + c * z
        share = float(b1(t)) if callable(b1) else b1
        y = share * x + (1 - share) * z
        yield y, x


def decayed(y, t):
    return noisy(y, t) + 0.2 * y


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.costly
def test_schedule_free_sgd(power, x64):
    """A warm-up from zero, and then a lower rate, which does not lower the weights."""
    schedule = eqopt.schedules.Join(
        [eqopt.schedules.Linear(0.0, 0.3, 3), eqopt.schedules.Constant(0.1)], [5]
    )
    with x64():
        etas = [float(schedule(t)) for t in range(STEPS)]
    assert etas[0] == 0 and etas[4] > etas[7]
    data = {"b1": 0.8, "weight_decay": 0.2, "weight_lr_power": power}
    opt = eqopt.ScheduleFreeSGD(schedule, **data)
    by_hand = schedule_free(decayed, etas, 0.8, power)
    assert_follows(opt, x64, by_hand, noisy, rtol=1e-6)


def test_schedule_free_adamw(x64):
    nu = 0

    def direction(y, t):
        nonlocal nu
        g = noisy(y, t)
        nu = 0.9 * nu + 0.1 * g**2
        return g / (np.sqrt(nu / (1 - 0.9 ** (t + 1))) + 1e-3) + 0.2 * y

    data = {"b1": 0.8, "b2": 0.9, "eps": 1e-3, "weight_decay": 0.2}
    opt = eqopt.ScheduleFreeAdamW(0.1, 4, **data)
    by_hand = schedule_free(direction, [0.1 * min(t / 4, 1) for t in range(STEPS)], 0.8)
    assert_follows(opt, x64, by_hand, noisy, rtol=1e-6)


def test_b1_on_a_schedule(x64):
    """Each step recovers the average with the `b1` that made the parameters."""
    data = {"b1": on_a_schedule, "weight_decay": 0.2}
    opt = eqopt.Scheduled(eqopt.ScheduleFreeSGD(0.1, **data))
    by_hand = schedule_free(decayed, [0.1] * STEPS, on_a_schedule)
    assert_follows(opt, x64, by_hand, noisy, rtol=1e-6)


def test_b1_of_zero():
    """The parameters are then the iterate itself, also in later steps."""
    params = jnp.ones(2)
    opt = eqopt.Scheduled(
        eqopt.ScheduleFree(eqopt.SGD(0.1), 0.1, b1=lambda t: jnp.zeros(()))
    )
    state = opt.init(params)
    for _ in range(3):
        params, state = opt.step(jnp.ones(2), state, params)
    np.testing.assert_allclose(params, 0.7, rtol=1e-6)


def test_no_memory_for_a_first_moment():
    state = eqopt.ScheduleFreeAdamW().init(jnp.ones(7))
    assert sum(x.shape == (7,) for x in jax.tree.leaves(state)) == 2  # z and nu


def test_the_average_belongs_to_the_last_b1():
    """`eval_params` undoes the interpolation of the last step, with its `b1`."""
    opt = eqopt.ScheduleFreeSGD(0.1, b1=0.6)
    params = jnp.asarray(START, jnp.float32)
    params, state = opt.step(jnp.ones(4), opt.init(params), params)
    other = eqx.tree_at(lambda o: o.b1, opt, 0.9)
    for o in (opt, other):
        np.testing.assert_allclose(o.eval_params(state, params), START - 0.1, 1e-6)
