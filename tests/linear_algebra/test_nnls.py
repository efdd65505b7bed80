"""Against SciPy's active set, and step by step against Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from eqopt.linear_algebra import nnls


SHAPES = [((3, 2), ()), ((2, 3), ()), ((6, 4), (3,)), ((10, 10), ()), ((4, 1), (1,))]


def _problem(shape, columns, dtype=jnp.float32):
    random = np.random.default_rng(sum(shape))
    a, b = random.normal(size=shape), random.normal(size=(shape[0], *columns))
    return jnp.asarray(a, dtype), jnp.asarray(b, dtype)


@pytest.mark.parametrize(("shape", "columns"), SHAPES)
@pytest.mark.costly
def test_solution(shape, columns):
    a, b = _problem(shape, columns)
    x = nnls(a, b, 5000)
    assert x.shape == (shape[1], *columns)
    assert (x >= 0).all()
    for x_k, b_k in zip(np.atleast_2d(x.T), np.atleast_2d(b.T), strict=True):
        _, least = scipy.optimize.nnls(np.asarray(a, float), np.asarray(b_k, float))
        np.testing.assert_allclose(np.linalg.norm(a @ x_k - b_k), least, atol=2e-5)
        # At a solution, the slope is zero, or upward where x is zero.
        slope = a.T @ (a @ x_k - b_k)
        assert (slope > -1e-3).all()
        assert (np.abs(slope * x_k) < 1e-3).all()


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12, 1e25])
@pytest.mark.costly
def test_scale_does_not_matter(scale):
    a, b = _problem((6, 4), ())
    x = nnls(a, -b, 500)
    assert (x > 0.1).any()
    same = nnls(scale * a, -scale * b, 500), scale * nnls(scale * a, -b, 500)
    for y in same:
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_zeros():
    zeros = jnp.zeros((3, 2))
    fn = lambda a: nnls(a, jnp.ones(3), 10)
    np.testing.assert_array_equal(fn(zeros), [0, 0])
    assert np.isfinite(jax.jacobian(fn)(zeros)).all()
    np.testing.assert_array_equal(nnls(zeros, jnp.ones(3), 0), [0, 0])


@pytest.mark.slow
def test_derivative():
    a, b = _problem((6, 4), ())
    b = -b  # the solution for `b` is zero
    fn = lambda b: nnls(a, b, 3000)
    slope = jax.jacobian(fn)(b)
    active = np.flatnonzero(fn(b) > 0)
    assert 0 < active.size < 4
    expected = np.zeros((4, 6))
    expected[active] = np.linalg.pinv(np.asarray(a)[:, active])
    np.testing.assert_allclose(slope, expected, atol=1e-4)
