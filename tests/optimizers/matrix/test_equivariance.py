"""What rotations, signs and scales of all gradients do to the updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import eqopt

from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


def of(cls, *args, **kwargs):
    return cls(*args, **kwargs, weight_dimension_numbers=NUMBERS)


SHAMPOO = {"precondition_frequency": 2, "eps": 1e-6}
# Methods that see a matrix only through products with itself.
ROTATED = {
    "Orthogonalize": of(eqopt.Orthogonalize),
    "Muon": of(eqopt.ScaleByMuon, beta=0.8),
    "SOAP": of(eqopt.ScaleBySOAP, precondition_frequency=2),
    "KL-SOAP": of(eqopt.ScaleBySOAP, precondition_frequency=2, kl=True),
    "Shampoo": of(eqopt.ScaleByShampoo, graft=None, **SHAMPOO),
    "Shampoo, grafted": of(eqopt.ScaleByShampoo, graft="sgd", **SHAMPOO),
    "KL-Shampoo": of(eqopt.ScaleByShampoo, graft=None, kl=True, **SHAMPOO),
}
# The power of the scale of the gradients that multiplies the updates.
SCALED = {
    "Orthogonalize": (of(eqopt.Orthogonalize, eps=0.0), 0),
    "Muon": (of(eqopt.ScaleByMuon, eps=0.0), 0),
    "Muon, adaptive": (of(eqopt.ScaleByMuon, eps=0.0, adaptive=True), 1),
    "row norm": (of(eqopt.ScaleByRowNorm, eps=0.0), 0),
    "Sinkhorn": (of(eqopt.ScaleBySinkhorn, eps=0.0), 0),
    "SOAP": (of(eqopt.ScaleBySOAP, eps=0.0), 0),
    "Shampoo": (of(eqopt.ScaleByShampoo, eps=0.0, graft=None), 0),
    "Shampoo, grafted": (of(eqopt.ScaleByShampoo, eps=0.0, graft="sgd"), 1),
}
SEEDS = st.integers(0, 2**32 - 1)


def updates_of(opt, grads):
    state, update, seen = opt.init(jnp.asarray(grads[0])), jax.jit(opt.update), []
    for g in grads:
        u, state = update(jnp.asarray(g), state)
        seen.append(np.asarray(u))
    return np.stack(seen)


@pytest.mark.parametrize("name", ROTATED)
def test_rotated_gradients_give_rotated_updates(name, x64):
    opt = ROTATED[name]

    @settings(max_examples=8, deadline=None)
    @given(SEEDS)
    def check(seed):
        rng = np.random.default_rng(seed)
        grads = rng.normal(size=(6, 4, 4))
        u, v = (np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in "uv")
        plain, turned = updates_of(opt, grads), updates_of(opt, u @ grads @ v.T)
        np.testing.assert_allclose(turned, u @ plain @ v.T, rtol=1e-5, atol=1e-6)

    with x64():
        check()


@pytest.mark.parametrize("name", SCALED)
def test_signs_and_scales(name, x64):
    opt, power = SCALED[name]

    @settings(max_examples=8, deadline=None)
    @given(SEEDS, st.floats(-3, 3), st.sampled_from([-1, 1]))
    def check(seed, exponent, sign):
        grads = np.random.default_rng(seed).normal(size=(6, 4, 4))
        scale = 10.0**exponent
        plain, scaled = updates_of(opt, grads), updates_of(opt, sign * scale * grads)
        expected = sign * scale**power * plain
        size = np.abs(expected).max()
        np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-6 * size)

    with x64():
        check()
