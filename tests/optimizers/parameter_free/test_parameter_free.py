"""Methods that find their learning rate: special cases beyond Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


TARGET = {"w": np.arange(6.0).reshape(2, 3), "b": np.array([3.0, -4.0])}
START = {"w": np.full((2, 3), 0.5), "b": np.array([1.0, 2.0])}


def gradients(p, t):
    """Noisy gradients of a quadratic."""
    return {k: (1 + t % 3) * (p[k] - TARGET[k]) for k in p}


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
