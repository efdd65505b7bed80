"""Built-in methods, built once more with public names: as exact, in as much memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

import eqopt

from .test_temporary_memory import temporary


class MomentsState(eqx.Module):
    count: Array
    mu: PyTree
    nu: PyTree


@eqopt.equation
def lamb(g, mu, nu, p, *, b1, b2, eps, weight_decay, mu_correction, nu_correction):
    mu = b1 * mu + (1 - b1) * g
    nu = b2 * nu + (1 - b2) * g * g
    u = mu / mu_correction / (jnp.sqrt(nu / nu_correction) + eps) + weight_decay * p
    p_norm, u_norm = (jnp.sqrt(jnp.sum(x * x)) for x in (p, u))
    is_zero = (p_norm == 0) | (u_norm == 0)
    return jnp.where(is_zero, 1, p_norm / jnp.where(is_zero, 1, u_norm)) * u, mu, nu


class ScaleByLAMB(eqopt.AbstractLeafwise):
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.1

    def init(self, params):
        moments = [eqopt.tree.zeros_like(params) for _ in range(2)]
        return MomentsState(jnp.zeros((), jnp.int32), *moments)

    def leafwise(self, state, params=None, **extra):
        count = eqopt.numerics.safe_increment(state.count)
        new = MomentsState(count, state.mu, state.nu)
        corrections = {
            "mu_correction": eqopt.numerics.bias_correction(self.b1, count),
            "nu_correction": eqopt.numerics.bias_correction(self.b2, count),
        }
        return eqopt.Leafwise(lamb, new, corrections)


class SlowState(eqx.Module):
    count: Array
    slow: PyTree
    inner_state: PyTree


class Lookahead(eqopt.AbstractWrapper):
    inner: eqopt.AbstractTransformation
    period: int
    step_size: float

    def init(self, params):
        slow = jax.tree.map(jnp.copy, params)
        return SlowState(jnp.zeros((), jnp.int32), slow, self.inner.init(params))

    def handle(self, call, state):
        fast, inner_state = call.run(self.inner, state.inner_state)
        count = (state.count + 1) % self.period

        def sync():
            slow = eqopt.incremental_update(fast, state.slow, self.step_size)
            return jax.tree.map(jnp.copy, slow), slow

        new, slow = jax.lax.cond(count == 0, sync, lambda: (fast, state.slow))
        return new, SlowState(count, slow, inner_state)

    def eval_params(self, state, params):
        return state.slow


CLONES = {
    "LAMB": (
        eqopt.Chain(ScaleByLAMB(), eqopt.ScaleByLearningRate(0.1)),
        eqopt.LAMB(0.1, weight_decay=0.1),
    ),
    "Lookahead": (
        Lookahead(eqopt.Adam(0.1), 3, 0.5),
        eqopt.Lookahead(eqopt.Adam(0.1), 3, 0.5),
    ),
}


@pytest.mark.parametrize("name", CLONES)
@pytest.mark.slow
def test_a_clone_is_as_exact(name, x64):
    clone, built_in = CLONES[name]
    with x64():
        params = {"w": jnp.linspace(-1.0, 2.0, 12).reshape(3, 4), "b": jnp.ones(4)}
        ours, state = params, clone.init(params)
        theirs, other = params, built_in.init(params)
        for i in range(7):
            grads = jax.tree.map(lambda p, i=i: jnp.cos(3 * p + i), params)
            ours, state = jax.jit(clone.step)(grads, state, ours)
            theirs, other = jax.jit(built_in.step)(grads, other, theirs)
            for x, y in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
                np.testing.assert_allclose(x, y, 1e-9)
        evaluated = clone.eval_params(state, ours), built_in.eval_params(other, theirs)
        for x, y in zip(*map(jax.tree.leaves, evaluated), strict=True):
            np.testing.assert_allclose(x, y, 1e-9)


@pytest.mark.parametrize("name", CLONES)
@pytest.mark.slow
def test_a_clone_takes_no_more_memory(name):
    clone, built_in = CLONES[name]
    assert temporary(clone) <= temporary(built_in) + 0.001
