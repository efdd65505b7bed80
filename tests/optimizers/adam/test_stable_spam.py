"""Stable-SPAM, beyond the laws and the formulas in its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def outputs(opt, grads):
    state, seen = opt.init(grads[0]), []
    for g in grads:
        updates, state = opt.update(g, state)
        seen.append(updates)
    return seen


def test_leaves_are_scaled_one_by_one():
    params = {"a": normal(0, 3), "b": 1e6 * normal(1, 2, 2), "c": jnp.zeros(3)}
    opt = eqopt.AdaClipGN()
    updates, state = opt.update(params, opt.init(params))
    assert {x.shape for x in jax.tree.leaves(state)} == {()}
    for name in "ab":
        np.testing.assert_allclose(jnp.linalg.norm(updates[name]), 1, rtol=1e-5)
    np.testing.assert_array_equal(updates["c"], 0)


@pytest.mark.slow
def test_complex_elements_keep_their_directions():
    g = jax.lax.complex(normal(0, 5), normal(1, 5))
    opt = eqopt.AdaClipGN(gamma3=0.5)
    *_, u = outputs(opt, [g, 10 * g])
    np.testing.assert_allclose(jnp.angle(u), jnp.angle(g), rtol=1e-5)
    assert jnp.unique(jnp.round(jnp.abs(u / g), 5)).size > 1  # some were clipped


def test_resets_forget_what_is_not_finite():
    grads = [jnp.array([jnp.inf, 1.0]), jnp.ones(2), jnp.array([jnp.nan, 1.0])]
    seen = outputs(eqopt.ScaleByAdamWithReset(reset_every=4), [*grads, jnp.ones(2)])
    assert jnp.isnan(seen[2][0])
    np.testing.assert_allclose(seen[3], 1, rtol=1e-6)


def test_after_the_last_step_the_factor_stays():
    """With a decay of zero, so that the gradient is divided by its modulus."""
    opt = eqopt.ScaleByAdamWithReset(0.9, 0.0, 0.0, None, total_steps=2, eta_min=0.0)
    *_, before, after, later = outputs(
        opt, [jnp.full(1, g, float) for g in (1, 1, 1, -3, 5)]
    )
    assert before == 1 and after == -1 and later == 1
