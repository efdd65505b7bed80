"""Clipping by the norms of the last steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted


WINDOW = 5


def norms_of(steps):
    """Around a level, with spikes and a lasting rise."""
    norms = np.random.default_rng(0).uniform(0.9, 1.1, steps)
    norms[[7, 12, 13]] *= 20
    norms[20:] *= 5
    return norms


def shares(norms, sigma, least):
    """Which part of each update remains."""
    for i, x in enumerate(norms):
        last = norms[max(0, i - WINDOW) : i]
        if len(last) < least:
            yield 1.0
        else:
            yield min(1.0, (np.mean(last) + sigma * np.std(last)) / x)


def clipped(opt, norms, dtype=jnp.float32):
    """The norms of the updates; the state at the end."""
    tree = {"a": jnp.full((3,), 0.5, dtype), "b": [jnp.full((1,), 0.5, dtype), None]}
    state = opt.init(tree)
    update = interpreted(lambda *args: opt.update(*args))
    found = []
    for x in norms:
        size = jnp.asarray(x, dtype)
        u, state = update(jax.tree.map(lambda g, size=size: size * g, tree), state)
        found.append(float(2 * u["a"][0]))
        np.testing.assert_array_equal(u["b"][0], u["a"][:1])
    return found, state


@pytest.mark.parametrize(("sigma", "least"), [(3.0, None), (0.5, 4), (0.0, 5)])
def test_it_follows_its_equations(sigma, least):
    norms = norms_of(30)
    opt = eqopt.ClipByHistory(WINDOW, sigma, least)
    found, state = clipped(opt, norms)
    expected = np.array([*shares(norms, sigma, least or 2)]) * norms
    np.testing.assert_allclose(found, expected, 1e-5)
    assert (expected < 0.99 * norms).any()
    # What was clipped is remembered as it was.
    assert state.count == 30
    np.testing.assert_allclose(state.norms, norms[-WINDOW:], 1e-6)


def test_norms_of_all_sizes():
    """A history far above and far below the norm."""
    for sizes in ([1e18, 1e-18, 1e-18], [1e-18, 1e-18, 1e18], [0.0, 0.0, 1.0, 1.0]):
        found, _ = clipped(eqopt.ClipByHistory(2), sizes)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, [*shares_of(sizes)], 1e-5)


def shares_of(sizes):
    sizes = np.array(sizes)
    for i, x in enumerate(sizes):
        bound = np.mean(sizes[i - 2 : i]) + 3 * np.std(sizes[i - 2 : i]) if i > 1 else x
        yield min(x, bound)


def test_what_is_not_finite_is_not_remembered():
    opt = eqopt.ClipByHistory(2, 1.0)
    found, state = clipped(opt, [1.0, jnp.nan, 3.0, jnp.nan, 1e30, jnp.inf, 4.0])
    np.testing.assert_allclose(
        found, [1.0, np.nan, 3.0, np.nan, 0.0, np.nan, 3.0], 1e-6
    )
    np.testing.assert_array_equal(state.norms, [4.0, 3.0])
    assert state.count == 3
