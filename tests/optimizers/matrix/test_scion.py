"""Scion, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


# Rows are outputs, as in the formulas.


def normals(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), float)


@pytest.mark.slow
def test_vectors_and_scalars_are_divided_by_their_rms():
    params = {"bias": jnp.ones(5), "scale": jnp.ones(()), "kernel": jnp.ones((2, 3, 4))}
    numbers = {"weight_dimension_numbers": eqopt.groups.layer_matrices}
    opt = eqopt.Scion(0.1, radius=3.0, beta=0.8, weight_decay=0.5, **numbers)
    g = jax.tree.map(lambda p: normals(p.shape), params)
    updates, _ = opt.update(g, opt.init(params), params)
    for name, x in g.items():
        expected = -0.1 * (3 * x / np.sqrt(np.mean(x**2)) + 0.5)
        np.testing.assert_allclose(updates[name], expected, rtol=1e-5)


def test_at_least_one_is_for_spectral_norms():
    message = "`at_least_one` needs `norm='spectral'`"
    with pytest.raises(ValueError, match=message):
        eqopt.ScaleByLMO("sign", at_least_one=True)
