"""Sophia, and its estimate of the curvature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ..trajectory import GRADS, START


def bowl(hessian):
    return lambda p: p @ jnp.asarray(hessian, p.dtype) @ p / 2


def test_hutchinson_is_right_on_average():
    hessian = np.array([[2.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.5, -1.0, 1.0]])
    opt, params = eqopt.HutchinsonDiagHessian(jr.key(3)), jnp.ones(3)

    def body(state, _):
        estimate, state = opt.update(params, state, params, value_fn=bowl(hessian))
        return state, estimate

    _, estimates = jax.lax.scan(body, opt.init(params), length=4000)
    np.testing.assert_allclose(estimates.mean(0), np.diag(hessian), atol=0.1)
    assert estimates.std(0).min() > 0.5  # they differ from step to step


@pytest.mark.slow
def test_hutchinson_of_a_complex_parameter_is_the_mean_of_its_parts():
    value_fn = lambda z: jnp.sum(3 * z.real**2 + z.imag**2 / 2)  # 6 and 1
    z = jnp.array([1 + 2j], jnp.complex64)
    opt = eqopt.HutchinsonDiagHessian()
    estimate, _ = opt.update(z, opt.init(z), z, value_fn=value_fn)
    np.testing.assert_allclose(estimate, 3.5, rtol=1e-6)


@pytest.mark.slow
def test_hutchinson_takes_models_with_frozen_parts():
    """It differentiates only where there are gradients, but needs the whole model."""
    model = eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jr.key(0))
    value_fn = lambda model: jnp.sum(jax.vmap(model)(jnp.ones((4, 2))) ** 2)
    grads = eqx.filter_grad(value_fn)(model)
    frozen = lambda m: [m.layers[0].weight, m.layers[0].bias, m.layers[1].weight]
    grads = eqx.tree_at(frozen, grads, [None] * 3)
    opt = eqopt.HutchinsonDiagHessian()
    estimate, _ = opt.update(grads, opt.init(model), model, value_fn=value_fn)
    assert jax.tree.structure(estimate) == jax.tree.structure(grads)
    np.testing.assert_allclose(estimate.layers[1].bias, 8.0, rtol=1e-5)


class Curvature(eqopt.AbstractTransformation):
    """A user's estimator, which reports each call."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        jax.debug.callback(extra["tell"])
        return jax.tree.map(jnp.full_like, updates, extra["curvature"]), state


def test_sophia_by_hand():
    """A user's estimate every third step, which is used from the next step on.

    The win rate is the share of the last direction that was not clipped.
    """
    calls, curvature = [], jnp.array([1.0, 2.0, -1.0, 50.0, 0.1])
    extra = {"curvature": curvature, "tell": lambda: calls.append(1)}
    opt = eqopt.Sophia(
        0.1,
        b1=0.5,
        b2=0.8,
        weight_decay=0.0,
        gamma=2.0,
        update_interval=3,
        hessian_diagonal_fn=Curvature(),
        track_win_rate=True,
    )
    params = jnp.asarray(START, jnp.float32)
    state, mu, nu, p, u = opt.init(params), 0.0, np.zeros(5), START, START
    for t, g in enumerate(GRADS):
        params, state = opt.step(jnp.asarray(g, jnp.float32), state, params, **extra)
        mu = 0.5 * mu + 0.5 * g
        u = mu / (1 - 0.5 ** (t + 1)) / np.maximum(2.0 * nu, 1e-8)
        p = p - 0.1 * np.clip(u, -1, 1)
        nu = 0.8 * nu + 0.2 * np.asarray(curvature) if t % 3 == 0 else nu
        np.testing.assert_allclose(params, p, rtol=1e-5, atol=1e-6)
    jax.effects_barrier()
    assert len(calls) == 2
    assert 0 < eqopt.tree.get(state, "win_rate") == np.mean(np.abs(u) < 1)


def test_a_win_rate_needs_a_threshold():
    with pytest.raises(ValueError, match=r"Sophia.*: `track_win_rate` needs `clip_thr"):
        eqopt.Sophia(0.1, clip_threshold=None, track_win_rate=True)
