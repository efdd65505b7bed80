"""Shampoo and KL-Shampoo, beyond the laws and the formulas in their rows."""

import jax.numpy as jnp
import jax.random as jr
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


def test_kl_has_other_bounds():
    with pytest.raises(ValueError, match=r"`b2` must be in \[0, 1\), but is 1"):
        eqopt.KLShampoo(0.1, b2=1.0)
    with pytest.raises(ValueError, match=r"KLShampoo: `eps` must be in \(0, inf\)"):
        eqopt.KLShampoo(0.1, eps=0.0)
