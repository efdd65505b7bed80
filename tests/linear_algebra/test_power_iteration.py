"""Against NumPy, and Optax where that has numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt.linear_algebra import power_iteration


def _symmetric(values, seed=0, dtype=np.float32):
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.normal(size=(len(values), len(values))))
    return jnp.asarray((q * np.asarray(values)) @ q.T, dtype)


@pytest.mark.parametrize("values", [[2.0], [3, 1], [-5, 2, 1], [1e6, 1, 1e-6, 0]])
@pytest.mark.costly
def test_symmetric(values):
    matrix = _symmetric(values)
    value, vector = power_iteration(matrix)
    np.testing.assert_allclose(value, values[0], rtol=1e-5)
    np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-5 * abs(value))
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e-3, 1e15, 1e30])
def test_scale_does_not_matter(scale):
    value, vector = power_iteration(_symmetric([3, 1, 0.5]))
    scaled, same = power_iteration(scale * _symmetric([3, 1, 0.5]))
    np.testing.assert_allclose(scaled, scale * value, rtol=1e-5)
    np.testing.assert_allclose(same, vector, atol=1e-4)


HERMITIAN = jnp.array([[2, 1j], [-1j, 2]])


@pytest.mark.slow
def test_complex_matrix_and_real_start():
    for scale in (1e-30, 1, 1e30):
        value, vector = power_iteration(scale * HERMITIAN, v0=jnp.array([1.0, 0.0]))
        assert vector.dtype == jnp.complex64
        np.testing.assert_allclose(value, 3 * scale, rtol=1e-5)
        image = HERMITIAN @ vector
        np.testing.assert_allclose(image, 3 * vector, atol=1e-5)


@pytest.mark.slow
def test_real_and_complex_parts_of_one_tree():
    product = lambda v: {"z": HERMITIAN @ v["z"], "x": 0.5 * v["x"]}
    start = {"z": jnp.array([1.0 + 0j, 0.0]), "x": jnp.ones(2)}
    value, vector = power_iteration(product, v0=start)
    np.testing.assert_allclose(value, 3, rtol=1e-5)
    np.testing.assert_allclose(vector["x"], [0, 0], atol=1e-4)
    assert (vector["z"].dtype, vector["x"].dtype) == (jnp.complex64, jnp.float32)


def test_not_symmetric():
    matrix = jnp.array([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0], [0.5, 0.0, -1.0]])
    values = np.linalg.eigvals(matrix)
    value, vector = power_iteration(matrix, num_iters=1000)
    np.testing.assert_allclose(value, values[np.argmax(np.abs(values))].real, rtol=1e-4)
    np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-4)


@pytest.mark.parametrize("hyper", [{}, {"num_iters": 3}, {"error_tolerance": 0.1}])
@pytest.mark.costly
def test_is_that_of_optax(hyper, standard_promotion):
    for seed in range(3):
        matrix = _symmetric([4, 3, 2, 1, 0], seed)
        v0 = jnp.arange(1.0, 6.0)
        for start in ({}, {"v0": v0}):
            ours = power_iteration(matrix, **start, **hyper)
            theirs = optax.power_iteration(matrix, **start, **hyper)
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
            if start or not hyper:
                signs = np.sign(ours[1][0] * theirs[1][0])
                np.testing.assert_allclose(ours[1], signs * theirs[1], atol=1e-3)


def test_zero_has_the_eigenvalue_zero(standard_promotion):
    zero = jnp.zeros((3, 3))
    value, vector = power_iteration(zero, v0=jnp.array([0.0, 2.0, 0.0]))
    assert value == 0
    np.testing.assert_array_equal(vector, [0, 1, 0])
    assert jnp.isnan(optax.power_iteration(zero)[0])
    value, vector = power_iteration(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    assert value == 0
    assert np.isfinite(vector).all()
    value, vector = power_iteration(zero, v0=jnp.zeros(3))
    assert value == 0
    np.testing.assert_array_equal(vector, [0, 0, 0])


@pytest.mark.slow
def test_dtypes(x64):
    value, vector = power_iteration(_symmetric([4, 1, 0.5]).astype(jnp.bfloat16))
    assert (value.dtype, vector.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(value, 4, rtol=0.01)
    with x64():
        matrix = _symmetric([3, 2, 1], dtype=jnp.float64)
        value, vector = power_iteration(matrix, error_tolerance=1e-12)
        assert (value.dtype, vector.dtype) == (jnp.float64, jnp.float64)
        np.testing.assert_allclose(value, 3, rtol=1e-12)


def test_keys():
    matrix = _symmetric([3, 2, 1])
    starts = [
        power_iteration(matrix, num_iters=0, key=key)[1]
        for key in (0, 1, jax.random.key(1), jax.random.PRNGKey(1))
    ]
    assert not np.allclose(starts[0], starts[1])
    np.testing.assert_array_equal(starts[1], starts[2])
    np.testing.assert_array_equal(starts[1], starts[3])
