"""How rotations, phases and scales of all gradients change the updates."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import eqopt

from ...interpreter import interpreted
from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


def of(cls, *args, **kwargs):
    return cls(*args, **kwargs, weight_dimension_numbers=NUMBERS)


kl_shampoo = functools.partial(eqopt.ScaleByShampoo, graft=None, kl=True)
REFRESHED = {"precondition_frequency": 2, "eps": 0.0}
# With this many steps, the 1e-7 that the iteration adds to norms has no effect.
CONVERGED = {"coefficients": "simple", "steps": 30}
# The power of the scale of the gradients that multiplies the updates.
SCALED = {
    "Orthogonalize": (of(eqopt.Orthogonalize, eps=0.0), 0),
    "Muon": (of(eqopt.ScaleByMuon, eps=0.0), 0),
    "Muon, adaptive": (of(eqopt.ScaleByMuon, eps=0.0, adaptive=True), 1),
    "NorMuon": (of(eqopt.ScaleByNorMuon, eps=0.0, **CONVERGED), 0),
    "AdaMuon": (of(eqopt.ScaleByAdaMuon, eps=0.0), 0),
    "NAMO": (of(eqopt.ScaleByNAMO, eps=0.0, **CONVERGED), 0),
    "NAMO-D": (of(eqopt.ScaleByNAMO, eps=0.0, per="column", **CONVERGED), 0),
    "Aurora": (of(eqopt.ScaleByAurora, eps=0.0, **CONVERGED), 0),
    "Scion": (of(eqopt.ScaleByLMO, **CONVERGED), 0),
    "Scion, signs": (of(eqopt.ScaleByLMO, "sign"), 0),
    "Scion, rows": (of(eqopt.ScaleByLMO, "row", eps=0.0), 0),
    "Scion, columns": (of(eqopt.ScaleByLMO, "col", eps=0.0), 0),
    "Dion2": (of(eqopt.ScaleByDion2, 0.5, eps=0.0), 0),
    "NorDion2": (of(eqopt.ScaleByDion2, 0.5, eps=0.0, b2=0.9), 0),
    "row norm": (of(eqopt.ScaleByRowNorm, eps=0.0), 0),
    "Sinkhorn": (of(eqopt.ScaleBySinkhorn, eps=0.0), 0),
    "APOLLO": (of(eqopt.ScaleByAPOLLO, 2, update_proj_gap=2, eps=0.0), 0),
    "PSGD-Kron": (of(eqopt.ScaleByPSGDKron, damping=0.0), 0),
    "SOAP": (of(eqopt.ScaleBySOAP, **REFRESHED), 0),
    "MOSO": (of(eqopt.ScaleByMOSO, **REFRESHED), 0),
    "SOAP-Muon": (of(eqopt.SOAPMuon, 1.0, **REFRESHED), 0),
    "Shampoo": (of(eqopt.ScaleByShampoo, graft=None, **REFRESHED), 0),
    "Shampoo, grafted": (of(eqopt.ScaleByShampoo, graft="sgd", **REFRESHED), 1),
    "KL-Shampoo": (of(kl_shampoo, precondition_frequency=2, eps=1e-300), 0),
}
# In a longer side, the null space of the first gradient has no unique basis.
SQUARE = {"MOSO", "SOAP", "SOAP-Muon", "Shampoo", "Shampoo, grafted", "KL-Shampoo"}
# APOLLO adds 1e-8 to the norms of projected columns, some of which are short.
SIZES = {"APOLLO": 1e4}
SEEDS = st.integers(0, 2**32 - 1)


def updates_of(opt, grads):
    state, update, seen = opt.init(jnp.asarray(grads[0])), interpreted(opt.update), []
    for g in grads:
        u, state = update(jnp.asarray(g), state)
        seen.append(np.asarray(u))
    assert np.isfinite(seen).all()
    return np.stack(seen)


@pytest.mark.parametrize("name", SCALED)
def test_phases_and_scales(name, x64):
    opt, power = SCALED[name]
    shape = (4, 4) if name in SQUARE else (6, 4)

    @settings(max_examples=3, deadline=None)
    @given(SEEDS, st.floats(-3, 3), st.sampled_from([-1, 1j]))
    def check(seed, exponent, phase):
        rng = np.random.default_rng(seed)
        grads = rng.normal(size=(6, *shape)) + 1j * rng.normal(size=(6, *shape))
        grads *= SIZES.get(name, 1.0)
        scale = 10.0**exponent
        plain, scaled = updates_of(opt, grads), updates_of(opt, phase * scale * grads)
        expected = phase * scale**power * plain
        size = np.abs(expected).max()
        np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-6 * size)

    with x64():
        check()
