"""The noise scale: closed forms, and estimates that are right on average."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.aggregating import gradient_noise_scale


def parts_of(grads, b=1):
    """From both kinds of input, for mini-batches of `b` of the rows of `grads`."""
    n = len(grads)
    small = grads.reshape(n // b, b, -1).mean(1)
    mean = {"w": jnp.mean(grads, 0), "none": None}
    variance = {"w": jnp.var(small, 0, ddof=1), "none": None}
    square = jnp.mean(jnp.sum(small * small, 1))
    return (
        gradient_noise_scale(mean, n, variance_grads=variance, small_batch_size=b),
        gradient_noise_scale(mean, n, mean_squared_norm=square, small_batch_size=b),
    )


@pytest.mark.parametrize("b", [1, 2])
def test_both_forms_are_one(b):
    grads = 0.5 + jr.normal(jr.key(0), (8, 5))
    exact = np.asarray(grads, np.float64).reshape(8 // b, b, 5).mean(1)
    trace = b * exact.var(0, ddof=1).sum()
    squared_norm = (exact.mean(0) ** 2).sum() - trace / 8
    for found in parts_of(grads, b):
        np.testing.assert_allclose(found.trace, trace, rtol=1e-5)
        np.testing.assert_allclose(found.squared_norm, squared_norm, rtol=1e-4)
        np.testing.assert_allclose(found.noise_scale, trace / squared_norm, rtol=1e-4)


def test_little_noise():
    """The variance keeps its digits where a difference of squares has none."""
    grads = 100 + 1e-3 * jr.normal(jr.key(0), (8, 5))
    exact = np.asarray(grads, np.float64).var(0, ddof=1).sum()
    by_variance, by_norms = parts_of(grads)
    np.testing.assert_allclose(by_variance.trace, exact, rtol=1e-2)
    assert abs(by_norms.trace / exact - 1) > 0.5


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.complex64])
def test_dtypes(dtype):
    mean = {"w": jnp.full(4, 300, dtype)}
    variance = {"w": jnp.full(4, 2.0)}
    found = gradient_noise_scale(mean, 8, variance_grads=variance)
    assert found.squared_norm.dtype == found.trace.dtype == jnp.float32
    np.testing.assert_allclose(found.trace, 8.0)
    size = float(jnp.real(mean["w"][0]).astype(jnp.float32))
    np.testing.assert_allclose(found.squared_norm, 4 * size**2 - 1, rtol=1e-6)
