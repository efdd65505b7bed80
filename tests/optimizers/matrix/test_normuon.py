"""NorMuon, beyond the laws and the formulas in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


def updates_of(opt, shape, steps=3):
    """The updates of the last step."""
    rng = np.random.default_rng(0)
    params = updates = jnp.zeros(shape)
    state = opt.init(params)
    for _ in range(steps):
        updates, state = opt.update(jnp.asarray(rng.normal(size=shape)), state)
    return np.asarray(updates)


@pytest.mark.parametrize("side", ["rows", "long"])
@pytest.mark.parametrize("shape", [(6, 4), (3, 5)])
@pytest.mark.costly
def test_lengths_without_memory(shape, side, x64):
    """With `b2=0`, all rows have one norm, or all columns if there are more of them."""
    opt = eqopt.ScaleByNorMuon(b2=0.0, side=side, weight_dimension_numbers=NUMBERS)
    with x64():
        updates = updates_of(opt, shape)
    axis = 0 if side == "long" and shape == (3, 5) else 1
    norms = np.linalg.norm(updates, axis=axis)
    np.testing.assert_allclose(norms, norms.mean(), rtol=1e-7)


@pytest.mark.parametrize("b2", [0.0, 0.5, 0.99])
@pytest.mark.costly
def test_it_keeps_the_norm_of_the_orthogonal_matrix(b2, x64):
    muon = eqopt.Chain(
        eqopt.EMA(0.8, debias=False),
        eqopt.Orthogonalize(scale="shape", weight_dimension_numbers=NUMBERS),
    )
    opt = eqopt.ScaleByNorMuon(
        beta=0.8, b2=b2, nesterov=False, weight_dimension_numbers=NUMBERS
    )
    with x64():
        norms = [np.linalg.norm(updates_of(x, (6, 4))) for x in (opt, muon)]
    np.testing.assert_allclose(*norms, rtol=1e-7)


@pytest.mark.parametrize("side", ["rows", "long"])
@pytest.mark.slow
def test_it_is_a_chain_of_its_parts(side, x64):
    chain = eqopt.Chain(
        eqopt.EMA(0.8, debias=False),
        eqopt.Orthogonalize("dion", scale="shape", weight_dimension_numbers=NUMBERS),
        eqopt.ScaleByRowRMS(0.9, side=side, weight_dimension_numbers=NUMBERS),
    )
    opt = eqopt.ScaleByNorMuon(
        "dion",
        beta=0.8,
        b2=0.9,
        nesterov=False,
        side=side,
        weight_dimension_numbers=NUMBERS,
    )
    with x64():
        for shape in ((6, 4), (3, 5)):
            updates, expected = (updates_of(x, shape) for x in (opt, chain))
            np.testing.assert_allclose(updates, expected, rtol=1e-7)


def test_orthonormal_rows_stay(x64):
    """If all rows have equal norms, it is Muon, which does not change them."""
    rows = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 3)))[0].T
    names = {"coefficients": "simple", "weight_dimension_numbers": NUMBERS}
    with x64():
        g = updates = jnp.asarray(rows)
        opt = eqopt.ScaleByNorMuon(**names)
        state = opt.init(g)
        for _ in range(3):
            updates, state = opt.update(g, state)
    np.testing.assert_allclose(updates, rows, atol=1e-7)


def test_cans_diverges_in_bfloat16():
    message = "ScaleByNorMuon: `ns_dtype` must not be bfloat16"
    with pytest.raises(ValueError, match=message):
        eqopt.ScaleByNorMuon("cans", ns_dtype=jnp.bfloat16)
