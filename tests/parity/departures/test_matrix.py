"""Where Muon and GaLore depart from Optax on purpose, on both sides."""

import jax.numpy as jnp
import jax.random as jr
import optax
import pytest

import eqopt

from .steps import updates_of


pytestmark = pytest.mark.usefixtures("standard_promotion")

MUON, GALORE = optax.contrib.scale_by_muon, optax.contrib.scale_by_galore
LAST_TWO = eqopt.MatrixDimensionNumbers(-2, -1)
THEIR_LAST_TWO = optax.contrib.MuonDimensionNumbers(-2, -1)


def first_update(opt, grads):
    return updates_of(opt, [grads])[0]


def largest_singular_value(x):
    return float(jnp.linalg.svd(x, compute_uv=False).max())


def test_galore_projects_the_short_side():
    grads = jr.normal(jr.key(0), (8, 3))
    state = eqopt.ScaleByGaLore(rank=2).init(grads)
    assert state.projector.shape == (3, 2)
    assert state.inner_state.mu.shape == (2, 8)
    state = GALORE(rank=2).init(grads)
    assert state.projector.shape == (8, 2)
    assert state.base_optimizer_state.mu.shape == (2, 3)


def test_galore_takes_stacks():
    grads = jr.normal(jr.key(0), (2, 4, 3))
    ours = eqopt.ScaleByGaLore(rank=2, weight_dimension_numbers=LAST_TWO)
    assert first_update(ours, grads).shape == grads.shape
    numbers = optax.contrib.GaLoreDimensionNumbers(-2, -1)
    with pytest.raises(ValueError, match="All axes must be specified"):
        first_update(GALORE(rank=2, weight_dimension_numbers=numbers), grads)


@pytest.mark.parametrize("preconditioning", ["aol", "schatten"])
@pytest.mark.slow
def test_muon_of_small_gradients(preconditioning):
    grads = 1e-9 * jr.normal(jr.key(0), (4, 6))
    ours = eqopt.ScaleByMuon(preconditioning=preconditioning)
    assert largest_singular_value(first_update(ours, grads)) > 0.6
    theirs = MUON(preconditioning=preconditioning)
    assert largest_singular_value(first_update(theirs, grads)) < 0.5


@pytest.mark.slow
def test_muon_of_complex_matrices_with_schatten():
    grads = jr.normal(jr.key(0), (4, 6), jnp.complex64)
    ours = first_update(eqopt.ScaleByMuon(preconditioning="schatten"), grads)
    assert 0.6 < largest_singular_value(ours) < 1.3
    theirs = largest_singular_value(
        first_update(MUON(preconditioning="schatten"), grads)
    )
    assert not 0.6 < theirs < 1.3


@pytest.mark.slow
def test_adaptive_muon_of_stacks():
    grads = jr.normal(jr.key(0), (2, 4, 4)) * jnp.array([1.0, 10.0])[:, None, None]
    ours = eqopt.ScaleByMuon(adaptive=True, weight_dimension_numbers=LAST_TWO)
    theirs = MUON(adaptive=True, weight_dimension_numbers=THEIR_LAST_TWO)
    alone = first_update(eqopt.ScaleByMuon(adaptive=True), grads[0])
    assert jnp.allclose(first_update(ours, grads)[0], alone, rtol=1e-4, atol=1e-5)
    assert not jnp.allclose(first_update(theirs, grads)[0], alone, rtol=1)


def test_muon_takes_as_many_steps_as_rows():
    grads = jr.normal(jr.key(0), (3, 3))
    rows = ((1.5, -0.5, 0.0),) * 20
    values = jnp.linalg.svd(
        first_update(eqopt.ScaleByMuon(rows), grads), compute_uv=False
    )
    assert jnp.allclose(values, 1, atol=1e-4)
    with pytest.raises(ValueError, match="Not enough coeffs to perform 5 steps"):
        MUON(rows).init(grads)


@pytest.mark.slow
def test_muon_with_spectral_in_bfloat16():
    grads = jr.normal(jr.key(0), (4, 6))
    ours, theirs = (
        make(preconditioning="spectral", ns_steps=2)
        for make in (eqopt.ScaleByMuon, MUON)
    )
    same = first_update(ours, grads), first_update(theirs, grads)
    assert jnp.allclose(*same, rtol=1e-4, atol=1e-5)
    half = grads.astype(jnp.bfloat16)
    assert jnp.allclose(first_update(ours, half), same[0], atol=0.03)
    with pytest.raises((NotImplementedError, ValueError, TypeError)):
        first_update(theirs, half)
