"""Scion, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


# Rows are outputs, as in the formulas.

# The norms that bound the steps, without the factors for the inputs.
NORMS = {
    "sign": lambda p: np.abs(p).max(),
    "row": lambda p: np.linalg.norm(p, axis=1).max(),
    "col": lambda p: np.sqrt(np.mean(p**2, 0)).max(),
    "spectral": lambda p: np.linalg.norm(p, 2) / np.sqrt(p.shape[0]),
}
FACTORS = {
    "sign": lambda m, n: n,
    "row": lambda m, n: np.sqrt(n),
    "col": lambda m, n: n,
    "spectral": lambda m, n: np.sqrt(n),
}


def normals(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), float)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.costly
def test_parameters_stay_in_the_ball(norm, normalized, x64):
    """In the constrained form, after a first step with a rate of 1."""
    with x64():
        opt = eqopt.Scion(
            0.3,
            norm,
            radius=5.0,
            normalized=normalized,
            coefficients="polar_express_8",
            weight_dimension_numbers=NUMBERS,
        )
        ball = eqopt.ScaleByLMO(
            norm, 5.0, 0.0, normalized=normalized, weight_dimension_numbers=NUMBERS
        )
        g = normals((4, 6))
        params = {"w": 0.7 * ball.update(g, ball.init(g))[0]}
        state = opt.init(params)
        factor = FACTORS[norm](4, 6) if normalized else 1
        step = jax.jit(opt.step)
        for t in range(20):
            params, state = step({"w": normals((4, 6), t)}, state, params)
            assert NORMS[norm](np.asarray(params["w"])) * factor <= 5.0 * (1 + 1e-6)


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
    message = "`at_least_one` requires `norm='spectral'`, not 'sign'"
    with pytest.raises(ValueError, match=message):
        eqopt.ScaleByLMO("sign", at_least_one=True)
