"""The distribution: density, moments, shapes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.monte_carlo import AbstractDistribution, MultiNormalDiag


LOC, LOG_SCALE = jnp.array([0.5, -1.0, 2.0]), jnp.array([0.0, -1.0, 0.7])
DIST = MultiNormalDiag(LOC, LOG_SCALE)


def test_density():
    x = jr.normal(jr.key(0), (5, 3))
    logpdf = jax.scipy.stats.multivariate_normal.logpdf
    expected = jax.jit(jax.vmap(lambda x: logpdf(x, LOC, DIST.covariance)))(x)
    np.testing.assert_allclose(DIST.log_prob(x), expected, rtol=1e-5)
    assert DIST.log_prob(x[0]).shape == ()
    np.testing.assert_allclose(DIST.log_prob(x[None])[0], expected, rtol=1e-5)


def test_moments():
    count = 20_000
    x = DIST.sample(jr.key(1), (count,))
    variances = jnp.exp(2 * LOG_SCALE)
    error = jnp.abs(jnp.mean(x, axis=0) - DIST.mean)
    assert (error < 4 * jnp.sqrt(variances / count)).all()
    bound = 4 * np.sqrt(2 * np.outer(variances, variances) / count)
    assert (np.abs(np.cov(x, rowvar=False) - DIST.covariance) < bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_shapes(shape):
    dist = MultiNormalDiag(jnp.ones(shape), jnp.zeros(shape))
    assert dist.sample(0).shape == shape
    assert dist.sample(jr.key(0), (4, 1)).shape == (4, 1, *shape)
    assert dist.log_prob(dist.sample(0, (4,))).shape == (4,)
    assert dist.covariance.shape == (*shape, *shape)
    assert dist.scale.shape == shape


def test_samples_are_differentiable():
    total = lambda dist: jnp.sum(dist.sample(2, (6,)))
    grad = jax.grad(total)(DIST)
    np.testing.assert_allclose(grad.loc, jnp.full(3, 6.0), rtol=1e-6)
    noise = (DIST.sample(2, (6,)) - LOC[None]) / DIST.scale[None]
    expected = jnp.sum(noise, axis=0) * DIST.scale
    np.testing.assert_allclose(grad.log_scale, expected, rtol=1e-4, atol=1e-5)


def test_is_data():
    assert isinstance(DIST, AbstractDistribution)
    assert DIST.params == (LOC, LOG_SCALE)
    stack = jax.vmap(MultiNormalDiag)(jnp.zeros((4, 3)), jnp.zeros((4, 3)))
    samples = jax.vmap(lambda d, key: d.sample(key))(stack, jr.split(jr.key(4), 4))
    assert samples.shape == (4, 3)
    seed, typed, raw = (DIST.sample(key) for key in (5, jr.key(5), jr.PRNGKey(5)))
    np.testing.assert_array_equal(seed, typed)
    np.testing.assert_array_equal(seed, raw)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_dtypes(dtype, x64):
    with x64():
        dist = MultiNormalDiag(LOC.astype(dtype), LOG_SCALE.astype(dtype))
        x = dist.sample(jr.key(6))
        assert x.dtype == dtype
        log_prob = dist.log_prob(x)
        wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
        assert log_prob.dtype == wide
        exact = jax.scipy.stats.norm.logpdf(
            *(a.astype(jnp.float64) for a in (x, dist.loc)),
            jnp.exp(dist.log_scale.astype(jnp.float64)),
        )
        np.testing.assert_allclose(log_prob, jnp.sum(exact), rtol=1e-5)
        assert jax.grad(lambda d: d.log_prob(x))(dist).loc.dtype == dtype


def test_density_far_out():
    """The square of 300 is more than the largest number of float16."""
    dist = MultiNormalDiag(jnp.zeros(1, jnp.float16), jnp.zeros(1, jnp.float16))
    x = jnp.full(1, 300.0, jnp.float16)
    np.testing.assert_allclose(dist.log_prob(x), -45000.92, rtol=1e-5)
