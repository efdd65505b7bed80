"""L-BFGS: which pairs it stores and forgets, and training whole models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...linesearch.subjects import quadratic


def test_the_first_step_is_no_longer_than_one():
    opt, params = eqopt.ScaleByLBFGS(), jnp.zeros(2)
    for grads, expected in [([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4])]:
        updates, _ = opt.update(jnp.array(grads), opt.init(params), params)
        np.testing.assert_allclose(updates, expected, 1e-6)
    updates, _ = opt.update(jnp.zeros(2), opt.init(params), params)
    assert not updates.any()


@pytest.mark.parametrize("frozen", [range(4), range(4, 7), [2, 4, 9]])
@pytest.mark.costly
def test_a_frozen_leaf_breaks_no_pair(frozen):
    """Its part of each pair would be from other steps than the other leaves."""
    opt = eqopt.LBFGS(1.0, 3, linesearch=None)
    loss = lambda p: (
        jnp.sum(jnp.array([1.0, 10.0]) * (p["a"] - 1) ** 2)
        + jnp.sum(jnp.array([100.0, 5.0]) * (p["b"] - 3) ** 2)
        + jnp.vdot(p["a"] - 1, p["b"] - 3)
    )
    params = {"a": jnp.full(2, 0.5), "b": jnp.full(2, 50.0)}
    state, start = opt.init(params), loss(params)
    for i in range(30):
        grads = jax.grad(loss)(params)
        is_other = (i in frozen) != (i - 1 in frozen)
        grads = {**grads, "b": None} if i in frozen else grads
        params, state = opt.step(grads, state, params)
        weights = eqopt.tree.get(state, "weights_memory")
        assert not (is_other and weights.any())
        assert loss(params) < 2 * start
    assert loss(params) < 1e-6


def test_a_parameter_that_is_added_breaks_no_pair():
    opt, params = eqopt.ScaleByLBFGS(3), {"a": jnp.ones(2)}
    state = opt.init(params)
    for i in (1.0, 2.0):
        _, state = opt.update({"a": jnp.array([1.0, i])}, state, {"a": jnp.full(2, i)})
    assert state.weights_memory.any()
    params = {"a": jnp.full(2, 3.0), "b": jnp.ones(3)}
    state = eqopt.tree.migrate(opt, state, params)
    _, state = opt.update(params, state, params)
    assert not state.weights_memory.any()


def test_a_model_without_parameters():
    opt = eqopt.ScaleByLBFGS(3)
    state = opt.init({})
    _, new = jax.jit(opt.update)({}, state, {})
    assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.costly
def test_a_gradient_that_is_not_finite_spoils_one_step(bad):
    opt, params = eqopt.ScaleByLBFGS(2), jnp.array([0.3, -0.2])
    state, updates = opt.init(params), params
    for i in range(4):
        grads = jax.grad(quadratic)(params)
        grads = grads * bad if i == 1 else grads
        updates, state = opt.update(grads, state, params)
        params = params if i == 1 else params - 0.3 * updates
    assert jnp.isfinite(updates).all()
    assert jnp.isfinite(state.diff_updates_memory).all()
