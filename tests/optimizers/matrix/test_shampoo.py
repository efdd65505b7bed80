"""Shampoo and KL-Shampoo, beyond the laws and the formulas in their rows."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


def shampoo(**arguments):
    return eqopt.ScaleByShampoo(weight_dimension_numbers=NUMBERS, **arguments)


def kl_shampoo(**arguments):
    return shampoo(graft=None, kl=True, **arguments)


def last_update(opt, grads):
    state, update, updates = opt.init(grads[0]), interpreted(opt.update), grads[0]
    for g in grads:
        updates, state = update(g, state)
    return updates


FIRST_STEP = {
    "b1": 0.0,
    "b2": 1.0,
    "eps": 0.0,
    "graft": None,
    "precondition_frequency": 1,
}


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_the_first_update_is_orthogonal(shape, dtype, one_sided, x64):
    with x64():
        g = jr.normal(jr.key(0), shape, dtype)
        opt = shampoo(one_sided=one_sided, **FIRST_STEP)
        if not one_sided:  # roots must not enlarge the rounding of a zero eigenvalue
            opt = shampoo(**FIRST_STEP | {"eps": 1e-12})
        updates, _ = opt.update(g, opt.init(g))
        u, _, vh = np.linalg.svd(g, full_matrices=False)
        np.testing.assert_allclose(updates, u @ vh, atol=1e-5)


def test_roots_that_are_not_finite_are_ignored():
    opt = shampoo(precondition_frequency=1)
    g = jr.normal(jr.key(0), (3, 3))
    _, state = opt.update(g, opt.init(g))
    _, new = opt.update(g.at[0, 0].set(jnp.nan), state)
    assert jnp.array_equal(new.roots[0], state.roots[0])


@pytest.mark.parametrize("kl", [False, True])
def test_zero_gradients_at_first(kl):
    """Updates for zero gradients are zero; the next gradient counts as the first."""
    opt = shampoo(kl=kl, precondition_frequency=1, b1=0.0, b2=0.9)
    zero, g = jnp.zeros((3, 4)), jr.normal(jr.key(0), (3, 4))
    updates, state = opt.update(zero, opt.init(zero))
    assert not updates.any()
    updates, _ = opt.update(g, state)
    assert jnp.isfinite(updates).all() and 0.5 < jnp.abs(updates).max() < 5


KL = {
    "Shampoo": functools.partial(kl_shampoo, b2=0.995, precondition_frequency=1),
    "SOAP": functools.partial(
        eqopt.ScaleBySOAP,
        shampoo_beta=0.995,
        precondition_frequency=1,
        kl=True,
        weight_dimension_numbers=NUMBERS,
    ),
}


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("name", KL)
def test_kl_fits_the_covariance(name, one_sided, x64):
    """For samples $A Z B^T$, the factors fit the matrix normal distribution.

    With one factor, the other side counts as white.
    """
    opt = KL[name](one_sided=one_sided)
    with x64():
        rng = np.random.default_rng(0)
        a, b = np.diag([1, 2, 4.0]) @ rng.normal(size=(3, 3)), np.diag([3, 1.0])
        samples = a @ rng.normal(size=(3000, 3, 2)) @ b.T
        samples = jnp.asarray(samples)
        step = lambda state, g: (opt.update(g, state)[1], None)
        state, _ = jax.lax.scan(step, opt.init(samples[0]), samples)
        left, right = state.factors
        assert (left is None) == one_sided
        rows = np.mean(np.diag(a @ a.T)) * np.eye(3) if one_sided else a @ a.T
        expected = np.kron(rows, b @ b.T)
        found = np.kron(np.eye(3) if left is None else left, right)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 0.06


def test_kl_has_other_bounds():
    with pytest.raises(ValueError, match=r"`b2` must be in \[0, 1\), but is 1"):
        kl_shampoo(b2=1.0)
    with pytest.raises(ValueError, match=r"KLShampoo .*`eps` must be in \(0, inf\)"):
        eqopt.KLShampoo(0.1, eps=0.0)
