"""The norm of the gradients, which is measured once, or passed in."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.tree import norm


PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
GRADS = {"w": jnp.full((2, 2), 2.0), "b": jnp.zeros(2)}  # of norm 4
CLIP = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.SGD(1.0))
IS_LARGE = lambda value, norm: norm > 10.0


@eqx.filter_jit
def moved(opt, grads, **extra):
    """How far a step moves the first weight."""
    new, _ = opt.step(grads, opt.init(PARAMS), PARAMS, **extra)
    return PARAMS["w"][0, 0] - new["w"][0, 0]


TAKEN = {
    "Chain": CLIP,
    "Normalize": eqopt.Chain(eqopt.Normalize(), eqopt.SGD(1.0)),
    "SkipStep": eqopt.SkipStep(CLIP, IS_LARGE),
    "ApplyIfFinite": eqopt.ApplyIfFinite(CLIP, 3),
    "RecordGradNorm": eqopt.RecordGradNorm(CLIP),
    "a fused wrapper": eqopt.ParamEMA(eqopt.Scheduled(CLIP), 0.9),
    "after a measurement": eqopt.Chain(eqopt.Snapshot("x", norm), CLIP),
    "DynamicLossScale": eqopt.Chain(
        eqopt.DynamicLossScale(CLIP, 0.5, min_scale=0.5), eqopt.Scale(1.0)
    ),
    "SAM": eqopt.SAM(CLIP, eqopt.SGD(0.0), sync_period=1),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.costly
def test_it_is_taken(name):
    """Where the updates are the gradients: twice the norm is half of the step."""
    # The scale of 0.5 changes the gradients and their norm alike.
    np.testing.assert_allclose(moved(TAKEN[name], GRADS, grad_norm=8.0), 0.25, 1e-6)


ALL = {"w": True, "b": True}
NOT_TAKEN = {
    "after other equations": eqopt.Chain(eqopt.Clip(1.0), CLIP),
    "after another update": eqopt.Chain(eqopt.Flatten(eqopt.Scale(1.0)), CLIP),
    "Masked": eqopt.Masked(CLIP, ALL),
    "Masked(equation)": eqopt.Chain(
        eqopt.Masked(eqopt.ClipByGlobalNorm(1.0), ALL), eqopt.SGD(1.0)
    ),
    "Partition": eqopt.Partition({0: CLIP}, 0),
    "MultiSteps": eqopt.MultiSteps(CLIP, 1),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
@pytest.mark.costly
def test_it_is_not_taken(name):
    """Where the updates are not the gradients, or not all of them."""
    np.testing.assert_allclose(moved(NOT_TAKEN[name], GRADS, grad_norm=8.0), 0.5, 1e-6)


def test_it_is_recorded():
    """Also if the step is skipped, and the norm that the caller passed stays theirs."""
    opt = eqopt.RecordGradNorm(eqopt.SkipStep(CLIP, lambda value, norm: norm > 3.0))
    state = opt.init(PARAMS)
    assert state.grad_norm == 0
    new, state = opt.step(GRADS, state, PARAMS)
    assert state.grad_norm == 4
    assert eqx.tree_equal(new, PARAMS)
    _, state = opt.step(GRADS, state, PARAMS, grad_norm=2.0)
    assert state.grad_norm == 2
    assert state.inner_state.total_skipped == 1


def test_the_record_has_a_buffer_of_its_own():
    """So that the caller may keep the norm, and donate the state."""
    opt, given = eqopt.RecordGradNorm(eqopt.SGD(0.1)), jnp.asarray(4.0)
    _, state = opt.step(GRADS, opt.init(PARAMS), PARAMS, grad_norm=given)
    assert state.grad_norm.unsafe_buffer_pointer() != given.unsafe_buffer_pointer()


def test_one_reduction():
    """Clipping, skipping and logging share it, or take the one from outside."""
    opt = eqopt.SkipStep(CLIP, IS_LARGE)

    def count(opt, **extra):
        step = lambda g, state, p, extra: opt.step(g, state, p, **extra)
        args = PARAMS, eqx.filter_eval_shape(opt.init, PARAMS), PARAMS, extra
        return len(
            re.findall(r"stablehlo.reduce\(", jax.jit(step).lower(*args).as_text())
        )

    of_leaves = len(PARAMS) + 1  # one for each, and their sum
    assert count(opt, grad_norm=1.0) == 0
    assert count(eqopt.RecordGradNorm(opt)) == of_leaves
    assert count(eqopt.RecordGradNorm(opt), grad_norm=1.0) == 0
    assert count(eqopt.ApplyIfFinite(CLIP, 3), grad_norm=1.0) <= of_leaves


def test_an_infinite_norm_of_finite_gradients():
    """Their squares overflow. They are finite all the same, so the step is taken."""
    huge = jax.tree.map(lambda g: 1e25 * g, GRADS)
    opt = eqopt.ApplyIfFinite(eqopt.SGD(1.0), 3)
    for scale, finite in ((1.0, True), (jnp.nan, False)):
        grads = eqopt.tree.scale(scale, huge)
        _, state = opt.step(grads, opt.init(PARAMS), PARAMS, grad_norm=norm(grads))
        assert state.last_finite == finite


def test_not_a_number():
    opt, message = CLIP, r"`grad_norm` must be one real number, but is .* \(2,\)"
    with pytest.raises(ValueError, match=message):
        opt.step(GRADS, opt.init(PARAMS), PARAMS, grad_norm=jnp.ones(2))
