"""Products whose factors are rounded to bfloat16, as on a TPU by default."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._optimizers.matrix.parts.eigenbasis import eigenvalues, gram

from ...interpreter import coarse_products, interpreted, on_an_accelerator


VALUES = np.logspace(0, -4, 12)


def basis():
    return np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]


def of_factor(v, factor):
    return eigenvalues(factor, v)


def of_gram(v, factor):
    """Of $X X^*$, where $X$ is the root of the factor."""
    return eigenvalues(gram(v.T * np.sqrt(VALUES, dtype=np.float32)[None], 0), v)


@pytest.mark.parametrize("found_by", [of_factor, of_gram])
def test_small_eigenvalues(found_by):
    """An error of the size of the largest one would be 40 times the smallest one."""
    v = basis()
    factor = jnp.asarray(v.T * VALUES @ v, jnp.float32)
    with coarse_products():
        found = interpreted(found_by)(jnp.asarray(v, jnp.float32), factor)
    np.testing.assert_allclose(found, VALUES, rtol=0.02)


@pytest.mark.parametrize("coefficients", ["standard", "polar_express_8"])
def test_a_low_rank_in_float32(coefficients):
    """Rounded with the factors, small singular values would be noise, which grows."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(32, 4)) @ draw.normal(size=(4, 64))
    basis = np.linalg.svd(x)[0]
    opt = eqopt.Orthogonalize(coefficients, dtype=jnp.float32)
    step = interpreted(lambda g: opt.update(g, opt.init(g), None)[0])
    with on_an_accelerator(), coarse_products():
        parts = basis.T @ step(jnp.asarray(x, jnp.float32))
    assert np.linalg.norm(parts[4:]) < 0.05 * np.linalg.norm(parts[:4])
