"""Where Adan and what came after depart from Optax, on both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def updates_of(opt, grads_in_turn, params):
    state, seen = opt.init(params), []
    for grads in grads_in_turn:
        updates, state = opt.update(grads, state, params)
        seen.append(updates)
    return np.stack(seen)


def test_adan_weighs_differences_with_b2():
    """By hand, with b1 = b3 = 0: g = 1, then 3, so the difference is 2."""
    b2, params = 0.9, jnp.ones(1)
    grads = [jnp.ones(1), jnp.full(1, 3.0)]
    v_hat = (1 - b2) * 2 / (1 - b2**2)
    expected = lambda weight: (3 + weight * v_hat) / (3 + weight * 2)
    ours = updates_of(eqopt.ScaleByAdan(0.0, b2, 0.0), grads, params)
    theirs = updates_of(optax.scale_by_adan(0.0, b2, 0.0), grads, params)
    np.testing.assert_allclose(ours[1], expected(b2), rtol=1e-5)
    np.testing.assert_allclose(theirs[1], expected(1 - b2), rtol=1e-5)


def test_adans_decay_is_proximal():
    params, zeros = jnp.ones(1), [jnp.zeros(1)]
    ours = updates_of(eqopt.Adan(1.0, weight_decay=4.0), zeros, params)
    theirs = updates_of(optax.adan(1.0, weight_decay=4.0), zeros, params)
    np.testing.assert_allclose(1 + ours, 1 / 5, rtol=1e-5)
    np.testing.assert_allclose(1 + theirs, 1 - 4, rtol=1e-5)


def test_adan_does_not_see_how_small_gradients_are():
    params, grads = jnp.ones(1), [jnp.full(1, 1e-5)]
    ours = updates_of(eqopt.Adan(1.0), grads, params)
    np.testing.assert_allclose(ours, -1, rtol=2e-3)
    assert abs(updates_of(optax.adan(1.0), grads, params)) < 0.11


def test_schedules_of_optimism():
    params, grads = jnp.ones(1), [jnp.ones(1)] * 2
    fade = lambda count: 1.0 / (1 + jnp.asarray(count, jnp.float32))
    ours = updates_of(eqopt.OptimisticGradientDescent(1.0, alpha=fade), grads, params)
    np.testing.assert_allclose(ours, [[-1.0], [-0.5]])
    with pytest.raises(TypeError):  # its signature says that it takes them
        updates_of(optax.optimistic_gradient_descent(1.0, alpha=fade), grads, params)


def test_second_moments_of_complex_parameters():
    """The mean of the squared moduli, and not of the squares, which are no moduli."""
    grads = [jnp.array([1j], jnp.complex64)]
    ours = updates_of(eqopt.ScaleBySimplifiedAdEMAMix(), grads, grads[0])
    theirs = updates_of(optax.contrib.scale_by_simplified_ademamix(), grads, grads[0])
    np.testing.assert_allclose(ours, 1j, rtol=1e-5)
    np.testing.assert_allclose(theirs, 1, rtol=1e-5)


def test_adopt_without_a_first_moment_does_not_multiply_by_zero():
    grads = [jnp.array([1e38])]
    ours = eqopt.ScaleByADOPT(use_clipping=False)
    theirs = optax.contrib.scale_by_adopt(use_clipping=False)
    assert updates_of(ours, grads, grads[0]) == 0
    assert np.isnan(updates_of(theirs, grads, grads[0]))


def test_sophia_takes_whole_models():
    model = {"weight": jnp.ones(2), "activation": jnp.tanh}
    value_fn = lambda m: jnp.sum(m["activation"](m["weight"]) ** 2)
    grads = {"weight": jnp.ones(2), "activation": None}
    opt = eqopt.Sophia(0.1)
    new, _ = opt.step(grads, opt.init(model), model, value_fn=value_fn)
    assert new["activation"] is jnp.tanh
    with pytest.raises((TypeError, AttributeError)):
        theirs = optax.contrib.sophia(0.1)
        theirs.update(grads, jax.eval_shape(theirs.init, model), model, obj_fn=value_fn)
