"""Mechanic: against formulas in NumPy, on a model, and in special cases."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..test_temporary_memory import temporary


START = np.array([2.0, -1.0, 0.5])


def noisy(x, t):
    """Gradients of a quadratic that is far away, with some noise."""
    return x - 10 * np.arange(3.0) + np.sin(7 * t + np.arange(3.0))


def by_hand(x, grad, steps, decay, eps, s_init, n):
    """The equations of the docstring round SGD: the parameters and the factor."""
    first, delta = x, np.zeros_like(x)
    beta = 1 - 10.0 ** -np.arange(1, n + 1)
    r, m, v, s = *np.zeros((3, n)), np.full(n, s_init)
    norm = np.linalg.norm
    for t in range(steps):
        g = grad(x, t)
        h = np.vdot(delta, g + decay * s.sum() * norm(g) / (norm(x) + eps) * x)
        r = beta * r - s * np.clip(h, -m, m)
        m = np.maximum(beta * m, abs(h) + eps)
        v = beta**2 * v + h**2
        s = (s_init / n * m + np.maximum(0, r)) / (np.sqrt(v) + eps)
        delta = delta - g
        x = first + s.sum() * delta
    return x, s.sum()


@pytest.mark.parametrize(
    "settings", [(0.01, 1e-8, 1e-6, 6), (0.0, 1e-4, 0.1, 1), (0.3, 1e-8, 1e-3, 3)]
)
@pytest.mark.costly
def test_by_hand(settings, x64):
    with x64():
        opt = eqopt.Mechanic(eqopt.SGD(1.0), *settings)
        x = jnp.asarray(START)
        state, step = opt.init(x), eqx.filter_jit(opt.step)
        for t in range(60):
            x, state = step(jnp.asarray(noisy(np.asarray(x), t)), state, x)
        expected, factor = by_hand(START, noisy, 60, *settings)
        assert factor > settings[2]
        np.testing.assert_allclose(state.s.sum(), factor, rtol=1e-6)
        np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_float32_is_float64(x64):
    """Also while steps are too small to change the parameters."""
    offset = 100.0

    def factors(dtype):
        opt = eqopt.Mechanic(eqopt.SGD(1.0))
        x = jnp.full(3, offset, dtype)
        state, step = opt.init(x), eqx.filter_jit(opt.step)
        for t in range(12):
            g = noisy(np.full(3, offset), t)
            x, state = step(jnp.asarray(g, dtype), state, x)
            yield float(state.s.sum())

    with x64():
        exact = list(factors(jnp.float64))
    np.testing.assert_allclose(list(factors(jnp.float32)), exact, rtol=1e-4)


@pytest.mark.parametrize(
    ("inner", "copies"),
    [
        (eqopt.SGD(1.0, 0.9), 1),
        (eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Adam(1.0)), 1),
        # With weight decay, both the sum and the step need the old parameters.
        (eqopt.AdamW(1.0), 2.1),
    ],
    ids=repr,
)
@pytest.mark.costly
def test_temporary_memory(inner, copies):
    """A step with donated arguments needs few copies of the parameters on a CPU."""
    assert temporary(eqopt.Mechanic(inner)) < copies + 0.01
