"""Bases that follow their factors, and the two ways to make them orthonormal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt._optimizers.matrix.galore import leading
from eqopt._optimizers.matrix.parts import eigenbasis
from eqopt._optimizers.matrix.parts.eigenbasis import (
    adjoint,
    cholesky_qr,
    find_all,
    follow,
)


N = 64


def random_basis(seed, dtype=jnp.float32):
    x = jax.random.normal(jax.random.key(seed), (N, N), dtype)
    return jnp.linalg.qr(x)[0]


def with_spectrum(values, seed=0, dtype=jnp.float32):
    q = random_basis(seed, dtype)
    return (q * values[None].astype(dtype)) @ adjoint(q)


def tracked(news, spectrum=None, scale=1.0, dtype=jnp.float32):
    """A factor with news in it, and the basis from before."""
    spectrum = jnp.logspace(0, -8, N) if spectrum is None else spectrum
    old = with_spectrum(spectrum, 0, dtype)
    return scale * (0.95 * old + 0.05 * jnp.asarray(news, dtype)), find_all(old, None)


def seen(number):
    """The covariance of a number of gradients with the spectrum of `tracked`."""
    x = jax.random.normal(jax.random.key(1), (N, number)) / jnp.sqrt(number)
    x = jnp.sqrt(jnp.logspace(0, -8, N))[:, None] * x
    x = random_basis(0) @ x
    return x @ x.T


FACTORS = {
    "the same": tracked(with_spectrum(jnp.logspace(0, -8, N))),
    "many gradients": tracked(seen(4 * N)),
    "few gradients": tracked(seen(4)),
    "one gradient": tracked(seen(1)),
    "half of the spectrum is zero": tracked(
        0.0, jnp.where(jnp.arange(N) < N // 2, 1.0, 0.0)
    ),
    "small": tracked(seen(N), scale=1e-20),
    "large": tracked(seen(N), scale=1e30),
    "complex": tracked(0.0, dtype=jnp.complex64),
}


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.costly
def test_a_basis_by_products(name, monkeypatch):
    """It is the one by reflections, up to the signs of its rows."""
    factor, v = FACTORS[name]
    by_reflections = follow(factor, v)
    monkeypatch.setattr(eigenbasis, "orthonormal", cholesky_qr)
    by_products = follow(factor, v)
    np.testing.assert_allclose(by_products @ adjoint(by_products), np.eye(N), atol=3e-6)
    cosines = jnp.abs(jnp.sum(jnp.conj(by_products) * by_reflections, 1))
    np.testing.assert_allclose(cosines, 1, atol=1e-5)


def test_directions_without_curvature_stay():
    factor, v = FACTORS["half of the spectrum is zero"]
    cosines = jnp.abs(jnp.sum(follow(factor, v) * v, 1))
    np.testing.assert_allclose(cosines, 1, atol=1e-3)


def test_a_basis_of_nothing_stays():
    v = random_basis(0)
    np.testing.assert_allclose(
        jnp.abs(follow(jnp.zeros((N, N)), v)), jnp.abs(v), atol=1e-6
    )


def test_a_stack_by_products():
    """In nested stacks, too. For a singular matrix, reflections take their place."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 8, 8)).at[1, 2, :, 3].set(0)
    q = jax.jit(jax.vmap(jax.vmap(eigenbasis._by_products)))(x)
    expected = cholesky_qr(x)
    assert jnp.isnan(expected[1, 2]).any()
    expected = expected.at[1, 2].set(eigenbasis._by_reflections(x[1, 2]))
    np.testing.assert_allclose(q, expected, atol=1e-6)
    eyes = np.tile(np.eye(8), (2, 3, 1, 1))
    np.testing.assert_allclose(adjoint(q) @ q, eyes, atol=2e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.costly
def test_leading_vectors(scale, dtype):
    """They hold what the leading singular vectors hold, in the same order."""
    keys = jax.random.split(jax.random.key(0))
    u, _ = jnp.linalg.qr(jax.random.normal(keys[0], (2, 96, 96), dtype))
    v, _ = jnp.linalg.qr(jax.random.normal(keys[1], (2, 200, 96), dtype))
    values = jnp.arange(1.0, 97.0) ** -0.5
    x = (u * values[None, None].astype(dtype)) @ adjoint(v)
    found = leading(scale * x, 16)
    np.testing.assert_allclose(
        adjoint(found) @ found, np.tile(np.eye(16), (2, 1, 1)), atol=3e-6
    )
    held = jnp.sum(jnp.abs(adjoint(found) @ x) ** 2, (1, 2)) / jnp.sum(values[:16] ** 2)
    np.testing.assert_allclose(held, 1, atol=1e-3)
    cosines = jnp.abs(jnp.sum(jnp.conj(found) * u[..., :16], 1))
    np.testing.assert_allclose(cosines[:, :8], 1, atol=1e-3)
