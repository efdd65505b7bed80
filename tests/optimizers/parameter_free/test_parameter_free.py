"""Against the authors' algorithms, written in NumPy, and in special cases."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


TARGET = {"w": np.arange(6.0).reshape(2, 3), "b": np.array([3.0, -4.0])}
START = {"w": np.full((2, 3), 0.5), "b": np.array([1.0, 2.0])}
ETA = lambda t: [0.0, 0.5, 1.0, 0.8][min(t, 3)]  # a warm-up from zero
DECAY = 0.1


def gradients(p, t):
    """Noisy gradients of a quadratic."""
    return {k: (1 + t % 3) * (p[k] - TARGET[k]) for k in p}


def total(fn, *trees):
    return sum(float(np.sum(fn(*(tree[k] for tree in trees)))) for k in trees[0])


def prodigy(p, steps, safeguard, b1=0.8, b2=0.9, b3=0.7, eps=1e-3, d0=1e-3, coef=2.0):
    p0, d, r = p, d0, 0.0
    m, v, s = ({k: 0 * x for k, x in p.items()} for _ in range(3))
    for t in range(steps):
        g = gradients(p, t)
        gamma = d * ETA(t) * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
        r = b3 * r + d / d0 * gamma * total(lambda g, a, b: g * (a - b), g, p0, p)
        m = {k: b1 * m[k] + (1 - b1) * d * g[k] for k in p}
        v = {k: b2 * v[k] + (1 - b2) * d**2 * g[k] ** 2 for k in p}
        weight = d / d0 * (d if safeguard else gamma)
        s = {k: b3 * s[k] + weight * g[k] for k in p}
        if total(np.abs, s) > 0:
            d = max(d, coef * r / total(np.abs, s))
        u = {k: m[k] / (np.sqrt(v[k]) + d * eps) for k in p}
        u["w"] = u["w"] + DECAY * p["w"]
        p = {k: p[k] - gamma * u[k] for k in p}
    return p


def dadapt_adamw(p, steps, b1=0.8, b2=0.9, eps=1e-3, d0=1e-3):
    d, r, b3 = d0, 0.0, np.sqrt(b2)
    m, v, s = ({k: 0 * x for k, x in p.items()} for _ in range(3))
    for t in range(steps):
        g = gradients(p, t)
        gamma = d * ETA(t) * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
        inner = total(lambda g, s, v: g * s / (np.sqrt(v) + eps), g, s, v)
        r = b3 * r + (1 - b3) * gamma * inner
        m = {k: b1 * m[k] + (1 - b1) * gamma * g[k] for k in p}
        v = {k: b2 * v[k] + (1 - b2) * g[k] ** 2 for k in p}
        s = {k: b3 * s[k] + (1 - b3) * gamma * g[k] for k in p}
        if total(np.abs, s) > 0:
            d = max(d, r / ((1 - b3) * total(np.abs, s)))
        u = {k: m[k] / (np.sqrt(v[k]) + eps) for k in p}
        u["w"] = u["w"] + gamma * DECAY * p["w"]
        p = {k: p[k] - u[k] for k in p}
    return p


def dog(p, steps, kind, first, eps=1e-3, weighted=False):
    p0, squares = p, 0.0
    r = {"heuristic": first * (1 + np.sqrt(total(np.square, p))), "distance": first}
    r = r.get(kind, 0.0)
    for t in range(steps):
        g = gradients(p, t)
        g["w"] = g["w"] + DECAY * p["w"]
        r = max(r, np.sqrt(total(lambda a, b: (a - b) ** 2, p, p0)))
        squares += total(np.square, g) * (r**2 if weighted else 1)
        step = (
            r**2 / (np.sqrt(squares) + eps) if weighted else r / np.sqrt(squares + eps)
        )
        if kind == "learning_rate" and t == 0:
            step = first
        p = {k: p[k] - 0.5 * step * g[k] for k in p}
    return p


def schedule(count):
    return jnp.array([0.0, 0.5, 1.0, 0.8])[jnp.minimum(count, 3)]


MASKED = {"weight_decay": DECAY, "mask": {"w": True, "b": False}}
ADAMW = {"b1": 0.8, "b2": 0.9, "eps": 1e-3, "estim_lr0": 1e-3, **MASKED}
PRODIGY = {"b3": 0.7, "estim_lr_coef": 2.0, **ADAMW}
DOG = {"learning_rate": 0.5, "eps": 1e-3, **MASKED}

CASES = {
    "prodigy": (
        lambda: eqopt.Prodigy(schedule, **PRODIGY),
        lambda p, n: prodigy(p, n, safeguard=False),
    ),
    "prodigy, safeguard": (
        lambda: eqopt.Prodigy(schedule, safeguard_warmup=True, **PRODIGY),
        lambda p, n: prodigy(p, n, safeguard=True),
    ),
    "dadapt_adamw": (lambda: eqopt.DAdaptAdamW(schedule, **ADAMW), dadapt_adamw),
    **{
        f"dog, {kind}": (
            lambda kind=kind: eqopt.DoG(init_step=(kind, 0.1), **DOG),
            lambda p, n, kind=kind: dog(p, n, kind, 0.1),
        )
        for kind in ("heuristic", "distance", "learning_rate")
    },
    "dowg": (
        lambda: eqopt.DoWG(init_estim_sq_dist=0.01, **DOG),
        lambda p, n: dog(p, n, "distance", 0.1, weighted=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_by_hand(name, x64):
    """In float64, so that rounding does not matter."""
    make, oracle = CASES[name]
    with x64():
        opt, params = make(), jax.tree.map(jnp.asarray, START)
        state, step = opt.init(params), eqx.filter_jit(opt.step)
        for t in range(12):
            grads = jax.tree.map(jnp.asarray, gradients(params, t))
            params, state = step(grads, state, params)
        for k, expected in oracle(START, 12).items():
            np.testing.assert_allclose(params[k], expected, rtol=1e-6)
            assert np.abs(expected - START[k]).max() > 0.01


def test_dog_for_each_layer():
    """On a tree, `ScaleByDistanceOverGradients` is DoG for each leaf."""
    layers = eqopt.ScaleByDistanceOverGradients(0.1, global_scale=-1.0)
    alone = eqopt.DoG(init_step=("heuristic", 0.1))
    p = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), START)
    q = dict(p)
    state, states = layers.init(p), {k: alone.init(q[k]) for k in q}
    for t in range(4):
        p, state = layers.step(gradients(p, t), state, p)
        for k in q:
            g = gradients({k: q[k]}, t)[k]
            q[k], states[k] = alone.step(g, states[k], q[k])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), p, q)


def eta_of(state):
    return eqopt.tree.get(state, "learning_rate")


@pytest.mark.parametrize("cls", [eqopt.Prodigy, eqopt.DAdaptAdamW])
def test_the_learning_rate_in_use(cls):
    """It includes the estimate and the bias corrections, already after `init`."""
    opt = cls(eqopt.schedules.Linear(0.5, 1.0, 1), b1=0.5, b2=0.75, estim_lr0=1e-3)
    params = jnp.ones(2)
    state = opt.init(params)
    np.testing.assert_allclose(eta_of(state), 1e-3 * 0.5 * np.sqrt(0.25) / 0.5, 1e-6)
    _, state = opt.step(jnp.ones(2), state, params)
    np.testing.assert_allclose(eta_of(state), 1e-3 * 0.5 * np.sqrt(0.25) / 0.5, 1e-6)


@pytest.mark.parametrize("cls", [eqopt.Prodigy, eqopt.DAdaptAdamW])
def test_a_leaf_that_is_frozen_later_does_not_stop_the_estimate(cls):
    opt, params = cls(), {"a": jnp.ones(3), "b": 100 * jnp.ones(3)}
    state, step = opt.init(params), jax.jit(opt.step)
    for t in range(60):
        frozen = None if t >= 5 else 100 * params["b"]
        params, state = step({"a": params["a"] - 50, "b": frozen}, state, params)
    assert eqopt.tree.get(state, "estim_lr") > 1


def test_the_numbers_that_start_dog():
    """A recipe names its own argument, and without a distance, `eps` is the first one."""
    with pytest.raises(ValueError, match=r"DoG.*: `init_step` must be in \(0, inf\)"):
        eqopt.DoG(init_step=("distance", -1.0))
    with pytest.raises(ValueError, match=r"DoWG.*: `eps` must be in \(0, inf\)"):
        eqopt.DoWG(eps=0.0)
