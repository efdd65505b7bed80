"""PSGD-Kron, beyond the laws and the formulas in its row."""

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqopt

from ...parity.matrices import NUMBERS


def psgd(**arguments):
    arguments = {"max_rms": jnp.inf, "max_abs": jnp.inf} | arguments
    return eqopt.ScaleByPSGDKron(weight_dimension_numbers=NUMBERS, **arguments)


def run(opt, grads):
    step = lambda state, g: opt.update(g, state)[::-1]
    state, updates = jax.lax.scan(step, opt.init(grads[0]), grads)
    return updates, state


def test_shapes_of_factors():
    params = [jnp.zeros((3, 3)), jnp.zeros((4, 3)), jnp.zeros((2, 3, 4))]
    shapes = lambda **options: [
        tuple(q.shape for q in factors)
        for factors in psgd(**options).init(params).factors
    ]
    assert shapes() == [((3, 3), (3, 3)), ((4,), (3, 3)), ((2, 3, 3), (2, 4))]
    full = [((3, 3), (3, 3)), ((4, 4), (3, 3)), ((2, 3, 3), (2, 4, 4))]
    assert shapes(max_skew=None) == full
    assert shapes(max_size=2) == [((3,), (3,)), ((4,), (3,)), ((2, 3), (2, 4))]


@pytest.mark.slow
def test_zero_gradients_at_first():
    """Updates for zero gradients are zero, and the next gradient sets the scale."""
    g = jr.normal(jr.key(0), (3, 4))
    for frequency in (1, 5):
        opt = psgd(precondition_frequency=frequency, b1=0.0)
        updates, _ = run(opt, jnp.stack([0 * g, 0 * g, 1e-4 * g]))
        assert not updates[:2].any()
        assert 0.1 < jnp.abs(updates[2]).max() < 10


@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.slow
def test_how_many_matrices_are_fitted_in_each_step(stagger):
    opt = psgd(precondition_frequency=2, stagger=stagger)
    grads = [jr.normal(jr.key(i), (3, 3)) for i in range(2)]
    state, update, fitted = opt.init(grads), jax.jit(opt.update), []
    for _ in range(5):
        _, new = update(grads, state)
        pairs = zip(state.lipschitz, new.lipschitz, strict=True)
        fitted.append(sum(not jnp.array_equal(a[0], b[0]) for a, b in pairs))
        state = new
    assert fitted == ([1] * 5 if stagger else [2, 0, 2, 0, 2])
