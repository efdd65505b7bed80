"""SOAP-Muon, beyond the laws and the comparison by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
def test_singular_values_are_one(shape, dtype, x64):
    with x64():
        opt = eqopt.SOAPMuon(1.0, coefficients="simple", scale="none")
        params = {"w": jnp.zeros(shape, dtype)}
        state, updates = opt.init(params), params
        # The first update is of signs in the eigenbasis, and such a matrix may be
        # singular.
        for i in range(6):
            updates, state = opt.update(
                {"w": jr.normal(jr.key(i), shape, dtype)}, state
            )
            assert (i > 0) is bool(updates["w"].any())
        values = np.linalg.svd(updates["w"], compute_uv=False)
        np.testing.assert_allclose(values, 1, atol=1e-6)


def test_without_a_preconditioner_it_is_an_orthogonal_adam(x64):
    """For constant squares of gradients, also Muon without Nesterov momentum."""
    with x64():
        parts = eqopt.ScaleBySOAP(0.9, 0.98, max_precond_dim=0, eps=1e-15)
        soap_muon = eqopt.SOAPMuon(1.0, 0.9, max_precond_dim=0, scale="none")
        rows = soap_muon.coefficients
        orthogonal = eqopt.Orthogonalize(rows)
        muon = eqopt.Chain(eqopt.EMA(0.9, debias=False), orthogonal)
        adam = eqopt.Chain(parts, orthogonal)
        params = {"w": jnp.zeros((4, 6))}
        states = [opt.init(params) for opt in (soap_muon, adam, muon)]
        for i in range(4):
            g = {"w": jnp.sign(jr.normal(jr.key(i), (4, 6)))}
            u, states[0] = soap_muon.update(g, states[0])
            expected, states[1] = adam.update(g, states[1])
            np.testing.assert_allclose(-u["w"], expected["w"], rtol=1e-7, atol=1e-7)
            if i > 0:
                # The first step only starts the preconditioner.
                same, states[2] = muon.update(g, states[2])
                np.testing.assert_allclose(-u["w"], same["w"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kl", [False, True])
def test_after_a_zero_gradient(kl):
    """A first gradient of zero gives no basis: it is the identity until a refresh."""
    opt = eqopt.SOAPMuon(1.0, kl=kl, scale="spectral")
    grads = jr.normal(jr.key(0), (13, 3, 4)).at[0].set(0)
    state, update, updates = opt.init(grads[0]), jax.jit(opt.update), []
    for g in grads:
        u, state = update(g, state)
        updates.append(u)
    assert not updates[0].any()
    for u in updates[1:]:
        assert 0.1 < jnp.sqrt(jnp.mean(u**2)) < 1.1


def test_parts_check_their_arguments():
    with pytest.raises(ValueError, match="`coefficients` must have shape"):
        eqopt.SOAPMuon(0.1, coefficients=(1.0, 2.0))
