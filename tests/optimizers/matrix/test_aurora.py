"""Aurora, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


# Rows are outputs, as in the formulas.


def balanced(g, **options):
    opt = eqopt.ScaleByAurora(scale="none", weight_dimension_numbers=NUMBERS, **options)
    return np.asarray(opt.update(g, opt.init(g))[0])


@pytest.mark.parametrize("is_wide", [False, True])
def test_rows_approach_equal_lengths(is_wide, x64):
    """More iterations make them more equal, and columns are always orthonormal."""
    with x64():
        g = jnp.asarray(np.random.default_rng(0).normal(size=(12, 3)))
        spreads = []
        for iterations in (1, 2, 4, 16):
            u = balanced(g.T if is_wide else g, pp_iterations=iterations)
            u = u.T if is_wide else u
            np.testing.assert_allclose(u.T @ u, np.eye(3), atol=1e-6)
            spreads.append(np.abs(np.linalg.norm(u, axis=1) - np.sqrt(3 / 12)).max())
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 1e-2


def test_lengths_of_gradients_do_not_matter(x64):
    lengths = 10.0 ** np.random.default_rng(1).uniform(-3, 3, size=(12, 1))
    with x64():
        g = jnp.asarray(np.random.default_rng(0).normal(size=(12, 3)))
        np.testing.assert_allclose(balanced(lengths * g), balanced(g), atol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
def test_zeros_stay_zero(dtype):
    """In zero matrices and in zero rows, with finite derivatives."""
    opt = eqopt.ScaleByAurora(weight_dimension_numbers=NUMBERS)
    total = lambda g: jnp.sum(jnp.abs(opt.update(g, opt.init(g))[0]) ** 2)
    normal = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)), dtype)
    for g in (jnp.zeros((5, 2), dtype), normal.at[1].set(0)):
        u, _ = opt.update(g, opt.init(g))
        assert jnp.all((u == 0) == (g == 0))
        assert jnp.isfinite(jax.grad(total)(g)).all()
