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
@pytest.mark.costly
def test_adan_follows_the_code_of_its_authors(betas):
    schedule, weight_decay = lambda count: 0.3 / (1 + count), 0.5
    opt = eqopt.Adan(
        lambda count: schedule(jnp.asarray(count, jnp.float32)),
        *betas,
        eps=1e-3,
        weight_decay=weight_decay,
    )
    expected = reference_adan(GRADS, START, schedule, *betas, 1e-3, weight_decay)
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 2e-5, 1e-6)


def test_the_first_step_of_adopt_is_not_nan():
    """With an `eps` of zero, and a first gradient that overflows when divided."""
    opt = eqopt.ScaleByADOPT(eps=0.0, use_clipping=False)
    u, state = opt.update(jnp.array([1e38, 0.0]), opt.init(jnp.ones(2)))
    np.testing.assert_array_equal(u, 0)
    np.testing.assert_array_equal(state.mu, 0)
