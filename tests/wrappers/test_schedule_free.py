"""Schedule-free learning: all sequences of the paper by hand, and special cases."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def by_hand(y, direction, etas, b1, power):
    """The sequences y and x of the paper, from a function of y and the step."""
    x = z = y
    weights = []
    for t, eta in enumerate(etas):
        z = z - eta * direction(y, t)
        weights.append(max(etas[: t + 1]) ** power)
        c = weights[-1] / sum(weights) if any(weights) else 0.0
        x = (1 - c) * x + c * z
        share = float(b1(t)) if callable(b1) else b1
        y = share * x + (1 - share) * z
    return y, x


def noisy(p, t):
    return (1 + t % 3) * (p - np.arange(3.0))


def trained(opt, start, steps):
    params = jnp.asarray(start)
    state, step = opt.init(params), eqx.filter_jit(opt.step)
    for t in range(steps):
        params, state = step(jnp.asarray(noisy(np.asarray(params), t)), state, params)
    return params, opt.eval_params(state, params)


START = np.array([2.0, -1.0, 0.5])


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.costly
def test_sgd_by_hand(power, x64):
    """A warm-up from zero, and then a lower rate, which does not lower the weights."""
    schedule = eqopt.schedules.Join(
        [eqopt.schedules.Linear(0.0, 0.3, 3), eqopt.schedules.Constant(0.1)], [5]
    )
    with x64():
        etas = [float(schedule(t)) for t in range(8)]
        assert etas[0] == 0 and etas[4] > etas[7]
        opt = eqopt.ScheduleFreeSGD(
            schedule, b1=0.8, weight_decay=0.2, weight_lr_power=power
        )
        decayed = lambda y, t: noisy(y, t) + 0.2 * y
        expected = by_hand(START, decayed, etas, 0.8, power)
        for ours, oracle in zip(trained(opt, START, 8), expected, strict=True):
            np.testing.assert_allclose(ours, oracle, rtol=1e-6)


def test_adamw_by_hand(x64):
    nu = np.zeros(3)

    def direction(y, t):
        nonlocal nu
        g = noisy(y, t)
        nu = 0.9 * nu + 0.1 * g**2
        return g / (np.sqrt(nu / (1 - 0.9 ** (t + 1))) + 1e-3) + 0.2 * y

    with x64():
        opt = eqopt.ScheduleFreeAdamW(
            0.1, 4, b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.2
        )
        etas = [0.1 * min(t / 4, 1) for t in range(8)]
        expected = by_hand(START, direction, etas, 0.8, 2.0)
        for ours, oracle in zip(trained(opt, START, 8), expected, strict=True):
            np.testing.assert_allclose(ours, oracle, rtol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_b1_on_a_schedule(decay, x64):
    """Each step recovers the average with the `b1` that made the parameters."""
    b1 = lambda t: 0.9 - 0.1 * jnp.asarray(t % 4, float)
    with x64():
        opt = eqopt.Scheduled(eqopt.ScheduleFreeSGD(0.1, b1=b1, weight_decay=decay))
        decayed = lambda y, t: noisy(y, t) + decay * y
        expected = by_hand(START, decayed, [0.1] * 8, b1, 2.0)
        for ours, oracle in zip(trained(opt, START, 8), expected, strict=True):
            np.testing.assert_allclose(ours, oracle, rtol=1e-6)


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


def test_a_warm_up_multiplies_a_schedule():
    linear = eqopt.schedules.Linear(0.4, 0.0, 8)
    warm = lambda t: linear(t) * jnp.minimum(t.astype(jnp.float32) / 4, 1)
    for one, other in zip(
        trained(eqopt.ScheduleFreeSGD(linear, 4), START, 6),
        trained(eqopt.ScheduleFreeSGD(warm), START, 6),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_no_memory_for_a_first_moment():
    state = eqopt.ScheduleFreeAdamW().init(jnp.ones(7))
    assert sum(x.shape == (7,) for x in jax.tree.leaves(state)) == 2  # z and nu


def test_the_average_belongs_to_the_last_b1():
    """`eval_params` undoes the interpolation of the last step, with its `b1`."""
    opt = eqopt.ScheduleFreeSGD(0.1, b1=0.6)
    params = jnp.asarray(START, jnp.float32)
    params, state = opt.step(jnp.ones(3), opt.init(params), params)
    other = eqx.tree_at(lambda o: o.b1, opt, 0.9)
    for o in (opt, other):
        np.testing.assert_allclose(o.eval_params(state, params), START - 0.1, 1e-6)
