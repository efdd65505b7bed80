"""Muown, beyond the laws: the authors' formulas, rows of zeros, and other changes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...methods.matrix.muown import muown_by_hand, norms
from ...methods.matrix.normuon import match_rms, shape_scale
from ...parity.matrices import NUMBERS, TABLES, newton_schulz


RNG = np.random.default_rng(0)
P, *GRADS = RNG.normal(size=(31, 4, 3))
STANDARD = TABLES["standard"][0]
OF_MATRICES = {"weight_dimension_numbers": NUMBERS}
SCALES = {"match_rms": match_rms, "shape": shape_scale}


def trained(opt, params, grads):
    state = opt.init(params)
    step = interpreted(lambda *args: opt.step(*args))
    for g in grads:
        params, state = step(jnp.asarray(g), state, params)
        yield np.asarray(params), state


FALLING = eqopt.schedules.Linear(0.1, 0.01, 5)


@pytest.mark.parametrize(
    ("decay", "nesterov", "scale", "rate"),
    [
        (0.0, True, "match_rms", 0.05),
        (0.3, False, "shape", 0.02),
        (0.1, True, "shape", FALLING),
    ],
)
@pytest.mark.costly
def test_it_follows_the_authors(decay, nesterov, scale, rate, x64):
    numbers = 0.8, 0.7, 0.9, 1e-3
    opt = eqopt.ScaleByMuown(
        rate, "standard", None, *numbers, decay, nesterov, scale, **OF_MATRICES
    )
    falling = lambda count: 0.1 - 0.09 * min(count, 5) / 5
    of_step = falling if rate is FALLING else lambda count: rate
    by_hand = P, GRADS, of_step, *numbers, decay, nesterov, SCALES[scale]
    expected = muown_by_hand(*by_hand)
    with x64():
        found = [*trained(opt, jnp.asarray(P), GRADS)]
    for (w, _), other in zip(found, expected, strict=True):
        np.testing.assert_allclose(w, other, 1e-5, 1e-6)
    np.testing.assert_allclose(found[-1][1].learning_rate, of_step(29), 1e-6)


def test_a_gain_that_becomes_negative(x64):
    """The row is the negative of its direction, and continues in the same way."""
    start, rate = 0.05 * P, 0.1
    grads = [start / norms(start) + 0.1 * g for g in GRADS[:6]]
    numbers = 0.8, 0.7, 0.9, 1e-3, 0.1, True
    opt = eqopt.ScaleByMuown(rate, "standard", None, *numbers, **OF_MATRICES)
    expected = muown_by_hand(
        start, grads, lambda count: rate, *numbers, SCALES["match_rms"]
    )
    with x64():
        found = [w for w, _ in trained(opt, jnp.asarray(start), grads)]
    assert (np.sum(found[-1] * start, axis=1) < 0).any()
    np.testing.assert_allclose(found, [*expected], 1e-3, 1e-5)


def test_rows_of_zeros_take_a_step_of_muon(x64):
    """In the whole matrix, or in one row; without gradients, zeros stay zeros."""
    rate, scale = 0.1, SCALES["match_rms"](4, 3)
    opt = eqopt.ScaleByMuown(rate, **OF_MATRICES)
    with x64():
        (first, _), (second, _) = trained(opt, jnp.zeros((4, 3)), GRADS[:2])
        ((mixed, _),) = trained(opt, jnp.asarray(P).at[0].set(0), GRADS[:1])
        ((still, _),) = trained(opt, jnp.zeros((4, 3)), [np.zeros((4, 3))])
    o = newton_schulz(GRADS[0], STANDARD)
    np.testing.assert_allclose(first, -rate * scale * o, 1e-6)
    assert np.isfinite(second).all() and (norms(second) > 0).all()
    assert (norms(mixed) > 0).all() and np.isfinite(mixed).all()
    np.testing.assert_array_equal(still, 0)


def test_changes_by_others_are_kept():
    """If something halves the rows, the next step starts from there."""
    opt = eqopt.ScaleByMuown(1e-3, **OF_MATRICES)
    params = jnp.asarray(P, jnp.float32)
    update = interpreted(lambda *args: opt.step(*args))
    params, state = update(jnp.asarray(GRADS[0]), opt.init(params), params)
    new, _ = update(jnp.asarray(GRADS[1]), state, params / 2)
    np.testing.assert_allclose(new, params / 2, atol=5e-3)


@pytest.mark.slow
def test_other_parameters_get_the_fallback():
    model = eqx.nn.Linear(3, 4, key=jax.random.key(0))
    grads = jax.tree.map(jnp.ones_like, model)
    adam = eqopt.AdamW(0.1, 0.7, 0.9, 1e-3, weight_decay=0.2)
    for fallback, alone in [(None, adam), (eqopt.SGD(0.5), eqopt.SGD(0.5))]:
        opt = eqopt.Muown(
            0.1, b1=0.7, b2=0.9, eps=1e-3, weight_decay=0.2, fallback=fallback
        )
        new, _ = opt.step(grads, opt.init(model), model)
        expected, _ = alone.step(grads, alone.init(model), model)
        np.testing.assert_allclose(new.bias, expected.bias, 1e-6)
        assert (new.weight != expected.weight).any()
