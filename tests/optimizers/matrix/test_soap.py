"""SOAP, beyond the laws and the formulas in its row."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


def run(opt, grads, params=None):
    """All updates, and the last state."""
    state = opt.init(grads[0] if params is None else params)
    update, seen = eqx.filter_jit(opt.update), []
    for g in grads:
        updates, state = update(g, state)
        seen.append(updates)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(seen))
    return seen, state


def normal(steps, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, *shape))


def soap(**arguments):
    return eqopt.ScaleBySOAP(weight_dimension_numbers=NUMBERS, **arguments)


@pytest.mark.parametrize("skip_first", [False, True])
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.slow
def test_after_a_zero_gradient(kl, skip_first):
    """A first gradient of zero gives no basis: it is the identity until a refresh."""
    opt = soap(kl=kl, skip_first=skip_first)
    grads = jr.normal(jr.key(0), (13, 3, 4))
    (zero, *updates), _ = run(opt, grads.at[0].set(0))
    assert not zero.any()
    for u in updates:
        assert 0.1 < jnp.sqrt(jnp.mean(u**2)) < 1.1


@pytest.mark.slow
def test_on_cuda_a_batch_is_decomposed_matrix_by_matrix():
    """The batched function takes 50 times as long (8 of 1024 x 1024, H200)."""
    opt, params = eqopt.SOAP(0.1), {i: jnp.ones((16, 16)) for i in range(8)}
    step = jax.jit(opt.step).trace(params, opt.init(params), params)
    text = step.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "@cusolver_geqrf_ffi" in line]
    assert calls and all(line.count("tensor<16x16xf32>") == 2 for line in calls)


def test_a_basis_by_kl_does_not_depend_on_the_scale():
    opt = soap(kl=True, precondition_frequency=1)
    grads = jr.normal(jr.key(0), (13, 3, 4))
    _, state = run(opt, grads)
    _, scaled = run(opt, 1e-5 * grads)
    for v, w in zip(state.basis, scaled.basis, strict=True):
        np.testing.assert_allclose(v, w, atol=1e-3)


def test_kl_without_factors_is_adam():
    """Sides above `max_precond_dim` have none."""
    grads = jr.normal(jr.key(0), (3, 3, 4))
    found, _ = run(soap(kl=True, max_precond_dim=2), grads)
    expected, _ = run(soap(max_precond_dim=2), grads)
    assert jnp.array_equal(jnp.stack(found), jnp.stack(expected))
