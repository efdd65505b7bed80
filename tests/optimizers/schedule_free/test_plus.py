"""Schedule-Free+ follows its equations."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted


START = {"w": np.random.default_rng(0).normal(size=(3, 2)), "b": np.array([1.0, -2.0])}
CURVATURE = {"w": 0.5, "b": 2.0}
NUMBERS = {
    "learning_rate": 0.8,
    "b1": 0.7,
    "b2": 0.9,
    "eps": 1e-3,
    "weight_decay": 3.0,
    "mask": {"w": True, "b": False},
    "beta": 0.8,
    "polyak_beta": 0.6,
    "weight_power": 1.5,
    "weight_lr_power": 1.0,
    "average_from": 3,
}
ANNEALED = {"anneal_steps": 10, "max_beta": 0.95}


def loss(p):
    return 0.3 + sum(np.sum(CURVATURE[k] * p[k] ** 2) / 2 for k in p)


def by_hand(steps, anneal_steps=0, max_beta=0.0):
    o = {**NUMBERS, "anneal_steps": anneal_steps, "max_beta": max_beta}
    x, y, z = ({k: v.copy() for k, v in START.items()} for _ in range(3))
    m, v, beta = dict.fromkeys(x, 0.0), dict.fromkeys(x, 0.0), o["beta"]
    norm = largest = total = 0
    for t in range(1, steps + 1):
        g = {k: CURVATURE[k] * y[k] for k in y}
        l1 = sum(np.abs(g[k]).sum() for k in g)
        norm = o["polyak_beta"] * norm + (1 - o["polyak_beta"]) * l1 * np.sqrt(
            np.pi / 2
        )
        if anneal_steps:
            part = min((t - 1) / anneal_steps, 1)
            beta = 1 - np.exp(
                (1 - part) * np.log(1 - o["beta"]) + part * np.log(1 - max_beta)
            )
        gap = loss(y) + beta * sum(np.sum(g[k] * (z[k] - x[k])) for k in g)
        step = max(o["learning_rate"], o["eps"]) * max(gap, 0)
        step /= norm / (1 - o["polyak_beta"] ** t)
        largest = max(largest, o["eps"], step)
        weight = t ** o["weight_power"] * largest ** o["weight_lr_power"]
        total += weight if t > o["average_from"] else 0
        c = 1 if t <= o["average_from"] else weight / total
        for k in g:
            m[k] = o["b1"] * m[k] + (1 - o["b1"]) * g[k]
            v[k] = o["b2"] * v[k] + (1 - o["b2"]) * g[k] ** 2
            root = np.sqrt(v[k] / (1 - o["b2"] ** t))
            d = m[k] / (1 - o["b1"] ** t) / (root + o["eps"])
            if o["mask"][k]:
                z[k] = z[k] - step**2 * o["weight_decay"] * y[k]
            z[k] = z[k] - step * d
            x[k] = (1 - c) * x[k] + c * z[k]
            y[k] = beta * x[k] + (1 - beta) * z[k]
        yield y, x


@pytest.mark.parametrize("annealed", [{}, ANNEALED], ids=["constant", "annealed"])
@pytest.mark.costly
def test_trajectory(annealed, x64):
    opt = eqopt.ScheduleFreePlus(**NUMBERS, **annealed)
    with x64():
        params = {k: jnp.asarray(p) for k, p in START.items()}
        state = opt.init(params)
        step = interpreted(
            lambda grads, state, params, value: opt.step(
                grads, state, params, value=value
            )
        )
        for y, x in by_hand(30, **annealed):
            grads = {k: CURVATURE[k] * p for k, p in params.items()}
            value = jnp.asarray(loss({k: np.asarray(p) for k, p in params.items()}))
            params, state = step(grads, state, params, value)
            evaluated = opt.eval_params(state, params)
            for k in params:
                np.testing.assert_allclose(params[k], y[k], rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(evaluated[k], x[k], rtol=1e-9, atol=1e-12)


def test_steps_are_never_backwards(x64):
    """A loss below its bound gives no step, and a rate of zero gives a small one."""
    with x64():
        params, grads = jnp.array([3.0, -1.0]), jnp.array([1.0, 2.0])

        def moved(value, **numbers):
            opt = eqopt.ScheduleFreePlus(eps=1e-3, **numbers)
            state = opt.init(params)
            return params - opt.step(grads, state, params, value=value)[0]

        np.testing.assert_array_equal(moved(-100.0), 0)
        np.testing.assert_allclose(
            moved(5.0, learning_rate=0.0), 1e-3 * moved(5.0), rtol=1e-9
        )
        assert np.all(moved(5.0) > 0.1)
