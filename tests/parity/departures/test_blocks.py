"""Where building blocks depart from Optax on purpose, asserted on both sides."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt

from .steps import last


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.slow
def test_a_plateau_below_zero():
    ones = [jnp.ones(2)] * 20
    value = lambda i: {"value": -1.0}
    ours = eqopt.ReduceLROnPlateau(0.5, patience=3)
    theirs = optax.contrib.reduce_on_plateau(0.5, patience=3)
    np.testing.assert_allclose(last(ours, ones, ones[0], value)[0], 0.5**6)
    np.testing.assert_allclose(last(theirs, ones, ones[0], value)[0], 1.0)


def test_a_nan_among_collected_updates():
    grads = [jnp.array([jnp.nan, 1.0]), *[jnp.ones(2)] * 3]
    ours, theirs = eqopt.ApplyEvery(2), optax.apply_every(2)
    np.testing.assert_array_equal(last(ours, grads, grads[1])[0], [2, 2])
    assert jnp.isnan(last(theirs, grads, grads[1])[0][0])


def test_normalizing_zeros():
    zeros = jnp.zeros(3)
    assert (last(eqopt.Normalize(), [zeros], zeros)[0] == 0).all()
    assert jnp.isnan(last(optax.contrib.normalize(), [zeros], zeros)[0]).all()


def test_centralizing_the_bias_of_a_convolution():
    """Each of its units has one element, which is its mean."""
    bias = jnp.array([1.0, 2, 4])[:, None, None]
    assert (last(eqopt.Centralize(), [bias], bias)[0] == bias).all()
    assert (last(optax.centralize(), [bias], bias)[0] == 0).all()


def test_units_of_equinox_layers():
    """A linear layer has its outputs first."""
    layer = eqx.nn.Linear(3, 2, use_bias=False, key=jr.key(0))
    weight = jnp.array([[3.0, 0.0, 4.0], [0.0, 0.0, 1.0]])
    layer = eqx.tree_at(lambda layer: layer.weight, layer, weight)
    grads = jax.tree.map(lambda p: 10 * p, layer)
    ours, _ = last(eqopt.AdaptiveGradClip(1.0), [grads], layer)
    np.testing.assert_allclose(ours.weight, weight)  # norms of 5 and 1, by rows
    tilted = eqx.tree_at(lambda g: g.weight, grads, grads.weight.at[1, 2].set(0.5))
    expected = jnp.array(
        [[3.0, 0.0, 4.0], [0.0, 0.0, 0.5]]
    )  # the second is not clipped
    ours, _ = last(eqopt.AdaptiveGradClip(1.0), [tilted], layer)
    np.testing.assert_allclose(ours.weight, expected)
    theirs, _ = last(optax.adaptive_grad_clip(1.0), [tilted], layer)
    assert not np.allclose(theirs.weight, expected)


@pytest.mark.slow
def test_private_noise_of_complex_parameters():
    """Each part has the noise of a real parameter, or the bound on the norm is broken."""
    grads = jnp.zeros((1, 20000), jnp.complex64)

    def variances(opt):
        u = last(opt, [grads], grads[0])[0]
        return np.var(u.real), np.var(u.imag)

    # 4 standard errors of a variance of 1 from 20000 numbers
    bound = 4 * np.sqrt(2 / grads.size)
    ours = eqopt.DifferentiallyPrivateAggregate(1.0, 1.0, 0)
    theirs = optax.contrib.differentially_private_aggregate(1.0, 1.0, 0)
    np.testing.assert_allclose(variances(ours), 1.0, atol=bound)
    np.testing.assert_allclose(variances(theirs), 0.5, atol=bound)


def test_measurements_keep_their_place():
    """Optax's monitor has nothing to find before the first step, and compiles again."""
    params = jnp.ones(2)
    ours = eqopt.Monitor({"norm": eqopt.tree.norm})
    theirs = optax.monitor({"norm": optax.tree.norm})
    before, after = ours.init(params), last(ours, [params], params)[1]
    assert jax.tree.structure(before) == jax.tree.structure(after)
    before, after = theirs.init(params), last(theirs, [params], params)[1]
    assert jax.tree.structure(before) != jax.tree.structure(after)


def test_averages_of_bools_keep_their_dtype():
    params = jnp.ones(2)
    is_long = lambda updates: jnp.sum(updates) > 1
    for library, same in ((eqopt, True), (optax, False)):
        measure = getattr(
            library, "MeasureWithEMA" if library is eqopt else "measure_with_ema"
        )(is_long, 0.9)
        state = measure.init(params)
        before = jax.tree.map(jnp.result_type, state)
        _, state = measure.update(params, state, params)
        assert (jax.tree.map(jnp.result_type, state) == before) is same


def test_a_gradient_that_is_none():
    """Here parameter and state stay; there it is an error that names no reason."""
    params = {"w": jnp.ones(2), "b": jnp.ones(3)}
    grads = {**params, "b": None}
    updates, state = last(eqopt.Adam(0.1), [grads] * 2, params)
    assert updates["b"] is None
    np.testing.assert_array_equal(eqopt.tree.get(state, "mu")["b"], jnp.zeros(3))
    with pytest.raises(ValueError, match=r"pytree structure error|Expected None"):
        last(optax.adam(0.1), [grads] * 2, params)


def test_distance_over_gradients_of_a_scalar():
    scalar = jnp.ones(())
    ours = eqopt.ScaleByDistanceOverGradients()
    theirs = optax.scale_by_distance_over_gradients()
    shape = lambda opt: opt.update(scalar, opt.init(scalar), scalar)[0].shape
    assert shape(ours) == () and shape(theirs) == (1,)


def test_a_function_that_selects():
    """A function counts as true, so Optax freezes everything."""
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    are_matrices = lambda params: jax.tree.map(lambda p: p.ndim == 2, params)
    ours = eqopt.SelectiveTransform(eqopt.SGD(0.1), freeze_mask=are_matrices)
    theirs = optax.selective_transform(optax.sgd(0.1), freeze_mask=are_matrices)
    moved = lambda opt: jax.tree.map(
        lambda u: bool(u.any()), opt.update(params, opt.init(params), params)[0]
    )
    assert moved(ours) == {"w": False, "b": True}
    assert moved(theirs) == {"w": False, "b": False}
