"""Against the eigendecomposition in float64."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt.linear_algebra import matrix_inverse_pth_root


def _matrix(size, condition):
    random = np.random.default_rng(size)
    q, _ = np.linalg.qr(random.normal(size=(size, size)))
    return (q * np.geomspace(1, 1 / condition, size)) @ q.T


def _oracle(matrix, p, ridge=1e-6):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (values + ridge * values[-1]) ** (-1 / p)) @ vectors.T


def _relative_error(found, expected):
    return np.abs(np.asarray(found, float) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("size", "condition", "bound"),
    [(1, 1, 1e-6), (3, 10, 2e-6), (8, 1e3, 5e-5), (16, 1e6, 2e-2)],
)
@pytest.mark.costly
def test_root(p, size, condition, bound):
    matrix = _matrix(size, condition)
    root, error = matrix_inverse_pth_root(jnp.asarray(matrix, jnp.float32), p)
    assert _relative_error(root, _oracle(matrix, p)) < bound
    assert error < 2e-6


@pytest.mark.slow
def test_every_p_is_right(standard_promotion):
    """Optax rounds the exponent of a matrix power to the next power of two."""
    matrix = _matrix(3, 10)
    root, _ = matrix_inverse_pth_root(jnp.asarray(matrix, jnp.float32), 3)
    theirs, _ = optax.matrix_inverse_pth_root(jnp.asarray(matrix, jnp.float32), 3)
    assert _relative_error(root, _oracle(matrix, 3)) < 2e-6
    assert _relative_error(theirs, _oracle(matrix, 3)) > 0.1


@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e30])
@pytest.mark.slow
def test_scale_does_not_matter(scale):
    matrix = _matrix(4, 100)
    root, error = matrix_inverse_pth_root(jnp.asarray(scale * matrix, jnp.float32), 4)
    assert _relative_error(root, _oracle(scale * matrix, 4)) < 1e-5
    assert error < 2e-6


@pytest.mark.slow
def test_singular_and_zero(standard_promotion):
    ones = np.ones((3, 3))
    for fn, is_right in (
        (matrix_inverse_pth_root, True),
        (optax.matrix_inverse_pth_root, False),  # stops after the first step
    ):
        root, _ = fn(jnp.asarray(ones, jnp.float32), 2)
        assert (_relative_error(root, _oracle(ones, 2)) < 5e-2) == is_right
    zero = jnp.zeros((3, 3))
    root, error = matrix_inverse_pth_root(zero, 2)
    np.testing.assert_allclose(root, 1e11 * np.eye(3), rtol=1e-4)
    assert error < 1e-6
    assert np.isnan(optax.matrix_inverse_pth_root(zero, 2)[0]).all()


def test_the_error_is_that_of_the_root():
    matrix = jnp.asarray(_matrix(4, 100), jnp.float32)
    errors = [matrix_inverse_pth_root(matrix, 2, num_iters=n)[1] for n in range(15)]
    assert errors[0] > 0.5
    assert errors[-1] < 1e-6
    coarse, error = matrix_inverse_pth_root(matrix, 2, error_tolerance=0.1)
    assert 1e-6 < error < 0.1
    fine, _ = matrix_inverse_pth_root(matrix, 2)
    assert 1e-6 < np.abs(coarse - fine).max() < 2


@pytest.mark.slow
def test_dtypes(x64):
    matrix = jnp.asarray(_matrix(4, 10), jnp.float32)
    root, _ = matrix_inverse_pth_root(matrix, 2)
    half, error = matrix_inverse_pth_root(matrix.astype(jnp.bfloat16), 2)
    assert (half.dtype, error.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(half.astype(jnp.float32), root, atol=0.2)
    with x64():
        wide, _ = matrix_inverse_pth_root(
            jnp.asarray(_matrix(16, 1e6)), 2, error_tolerance=1e-12
        )
        assert _relative_error(wide, _oracle(_matrix(16, 1e6), 2)) < 1e-7
