"""Variants of Adam with several momenta, beyond the laws and Optax."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..trajectory import GRADS, START, trajectory


def reference_adan(grads, p, lr, b1, b2, b3, eps, weight_decay):
    """The algorithm of the authors' code in float64, written with other variables."""
    m, v, n, last, seen = 0.0, 0.0, 0.0, grads[0], []
    for t, g in enumerate(grads, start=1):
        m = m + (1 - b1) * (g - m)
        v = v + (1 - b2) * ((g - last) - v)
        n = n + (1 - b3) * ((g + b2 * (g - last)) ** 2 - n)
        eta = lr(t - 1) / (np.sqrt(n) / np.sqrt(1 - b3**t) + eps)
        p = p - eta * m / (1 - b1**t) - eta * b2 * v / (1 - b2**t)
        p = p / (1 + lr(t - 1) * weight_decay)
        last = g
        seen.append(p)
    return np.stack(seen)


@pytest.mark.parametrize("betas", [(0.98, 0.92, 0.99), (0.5, 0.1, 0.7)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
@pytest.mark.costly
def test_adan_follows_the_code_of_its_authors(betas, weight_decay):
    schedule = lambda count: 0.3 / (1 + count)
    opt = eqopt.Adan(
        lambda count: schedule(jnp.asarray(count, jnp.float32)),
        *betas,
        eps=1e-3,
        weight_decay=weight_decay,
    )
    expected = reference_adan(GRADS, START, schedule, *betas, 1e-3, weight_decay)
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 2e-5, 1e-6)


def test_adans_decay_is_proximal_and_masked():
    """A large decay does not change signs, and a parameter that is masked stays."""
    params = {"in": jnp.ones(2), "out": jnp.ones(2)}
    opt = eqopt.Adan(1.0, weight_decay=9.0, mask={"in": True, "out": False})
    zeros = eqopt.tree.zeros_like(params)
    new, _ = opt.step(zeros, opt.init(params), params)
    np.testing.assert_allclose(new["in"], 0.1, rtol=1e-6)
    np.testing.assert_array_equal(new["out"], 1)


def test_adan_moves_by_the_rate_whatever_the_scale():
    """By default there is no `eps_root`, which would hide small gradients."""
    for scale in (1.0, 1e-5):
        moved = trajectory(eqopt.Adan(0.1), [np.full(5, scale)], START)[0] - START
        np.testing.assert_allclose(moved, -0.1, rtol=2e-3)


def test_ademamix_by_hand():
    """With schedules, which get the number of steps before this one."""
    b1, b2, b3, alpha = 0.5, 0.8, lambda t: 0.1 * t, lambda t: 2.0 + t
    m1, m2, nu, p, expected = 0.0, 0.0, 0.0, START, []
    for t, g in enumerate(GRADS):
        m1, m2 = b1 * m1 + (1 - b1) * g, b3(t) * m2 + (1 - b3(t)) * g
        nu = b2 * nu + (1 - b2) * g**2
        hat, root = m1 / (1 - b1 ** (t + 1)), np.sqrt(nu / (1 - b2 ** (t + 1)))
        p = p - 0.1 * ((hat + alpha(t) * m2) / (root + 1e-3) + 0.2 * p)
        expected.append(p)
    as_float = lambda f: lambda count: f(jnp.asarray(count, jnp.float32))
    opt = eqopt.AdEMAMix(
        0.1, b1, b2, as_float(b3), as_float(alpha), 1e-3, weight_decay=0.2
    )
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 2e-5, 1e-6)


def test_simplified_ademamix_without_the_gradient_is_adam():
    """Its momentum is a sum, so its rate is `1 / (1 - b1)` times as large."""
    b1 = 0.5
    ours = eqopt.ScaleBySimplifiedAdEMAMix(b1=b1, b2=0.9)
    adam = eqopt.ScaleByAdam(b1=b1, b2=0.9)
    params = jnp.asarray(START, jnp.float32)
    state, adam_state = ours.init(params), adam.init(params)
    for t, g in enumerate(jnp.asarray(GRADS, jnp.float32), start=1):
        u, state = ours.update(g, state)
        v, adam_state = adam.update(g, adam_state)
        np.testing.assert_allclose(u, v * (1 - b1**t) / (1 - b1), rtol=1e-5)


def test_the_first_step_of_adopt_moves_nothing():
    opt = eqopt.ADOPT(0.1, b1=0.0)
    path = trajectory(opt, [np.full(5, 2.0), np.full(5, 8.0), np.full(5, 1.0)], START)
    np.testing.assert_array_equal(path[0], START.astype(np.float32))
    np.testing.assert_allclose(path[1] - path[0], -0.1, rtol=1e-5)  # clipped to 1
    nu = 0.9999 * 4 + 0.0001 * 64
    np.testing.assert_allclose(path[2] - path[1], -0.1 / np.sqrt(nu), rtol=1e-4)


def test_the_first_step_of_adopt_is_not_nan():
    """With an `eps` of zero, and a first gradient that overflows when divided."""
    opt = eqopt.ScaleByADOPT(eps=0.0, use_clipping=False)
    u, state = opt.update(jnp.array([1e38, 0.0]), opt.init(jnp.ones(2)))
    np.testing.assert_array_equal(u, 0)
    np.testing.assert_array_equal(state.mu, 0)


def test_laprop_starts_with_signs():
    """With a small epsilon, also for decays with which Adam may diverge."""
    path = trajectory(eqopt.LaProp(0.1, b1=0.95, b2=0.5), GRADS[:1], START)
    np.testing.assert_allclose(path[0], START - 0.1 * np.sign(GRADS[0]), 1e-6)


def test_laprop_without_momentum_is_rmsprop():
    laprop = eqopt.LaProp(0.1, b1=0.0, b2=0.8, eps=1e-3)
    rmsprop = eqopt.RMSprop(
        0.1, decay=0.8, eps=1e-3, eps_in_sqrt=False, bias_correction=True
    )
    paths = [trajectory(opt, GRADS, START) for opt in (laprop, rmsprop)]
    np.testing.assert_allclose(*paths, rtol=1e-6)
