"""Caution: which elements are masked, how the others are rescaled, and weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted
from ..laws.row import Evaluated
from ..methods import METHODS
from ..parity.by_hand import B1, B2, EPS, adam_by_hand


RNG = np.random.default_rng(0)
P, *GRADS = RNG.normal(size=(31, 12))
MOMENTS = B1, B2, EPS


def c_adamw(p, rate=0.1, decay=0.3):
    for d, g in zip(adam_by_hand(GRADS, *MOMENTS), GRADS, strict=True):
        mask = d * g > 0
        p = p - rate * (d * mask / max(mask.mean(), 1e-3) + decay * p)
        yield p


def c_lion(p, rate=0.1, decay=0.3):
    m = 0
    for g in GRADS:
        d, m = np.sign(B1 * m + (1 - B1) * g), B2 * m + (1 - B2) * g
        mask = d * g > 0
        p = p - rate * (d * mask * p.size / (mask.sum() + 1) + decay * p)
        yield p


OF_DIRECTION = eqopt.Chain(
    eqopt.Cautious(eqopt.ScaleByAdam(*MOMENTS)),
    eqopt.AddDecayedWeights(0.3),
    eqopt.ScaleByLearningRate(0.1),
)
ADAMW = eqopt.AdamW(0.1, *MOMENTS, weight_decay=0.3)
LION = eqopt.Lion(0.1, B1, B2, weight_decay=0.3)
CASES = {
    "AdamW": (eqopt.Cautious(ADAMW), c_adamw),
    "direction": (OF_DIRECTION, c_adamw),
    "chain": (eqopt.Cautious(eqopt.Chain(ADAMW)), c_adamw),
    "Lion": (eqopt.Cautious(LION, "plus_one"), c_lion),
}


@pytest.mark.parametrize(("opt", "by_hand"), CASES.values(), ids=CASES)
def test_as_the_authors_do(opt, by_hand, x64):
    """Weight decay is not masked."""
    with x64():
        params = jnp.asarray(P)
        state = opt.init(params)
        step = interpreted(lambda *args: opt.step(*args))
        for g, expected in zip(GRADS, by_hand(P), strict=True):
            params, state = step(jnp.asarray(g), state, params)
            np.testing.assert_allclose(params, expected, rtol=1e-9)


MUON = {"beta": 0.0, "nesterov": False}


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Muon(0.1, **MUON, weight_decay=0.5),
        eqopt.Muon(0.1, **MUON, weight_decay=0.5, fallback=eqopt.SGD(0.1)),
        eqopt.NorMuon(0.1, **MUON, weight_decay=0.5),
        eqopt.SOAP(0.1, b1=0.0, weight_decay=0.5, skip_first=False),
    ],
    ids=repr,
)
@pytest.mark.costly
def test_decay_of_matrices_is_not_masked(opt):
    opt = eqopt.Cautious(opt, "none")
    params = {"w": jnp.ones((3, 3))}
    grads = {"w": jnp.diag(jnp.array([1.0, 0.0, -1.0]))}
    new, _ = opt.step(grads, opt.init(params), params)
    np.testing.assert_allclose(new["w"][1, 1], 0.95, rtol=1e-6)


@pytest.mark.parametrize("fallback", [ADAMW, LION, eqopt.Chain(ADAMW)], ids=repr)
@pytest.mark.costly
def test_a_fallback_is_cautious_by_itself(fallback):
    """Vectors do not count in the share of the matrices, or the other way round."""
    inner = eqopt.Muon(0.1, weight_decay=0.5, fallback=fallback)
    opt, of_all = (eqopt.Cautious(x, "plus_one") for x in (inner, fallback))
    of_matrices = eqopt.Cautious(
        eqopt.Muon(0.1, weight_decay=0.5, fallback=eqopt.SGD(0.1)), "plus_one"
    )
    params = {"b": jnp.asarray(P, jnp.float32), "w": jnp.ones((3, 4))}
    only = {k: {k: x} for k, x in params.items()}
    state = opt.init(params)
    states = {"b": of_all.init(only["b"]), "w": of_matrices.init(only["w"])}
    step = interpreted(lambda opt, *args: opt.step(*args))
    for i in range(6):
        draw = lambda p, i=i: jnp.asarray(
            np.random.default_rng([i, p.ndim]).normal(size=p.shape), jnp.float32
        )
        grads = jax.tree.map(draw, params)
        params, state = step(opt, grads, state, params)
        for k, x in (("b", of_all), ("w", of_matrices)):
            only[k], states[k] = step(x, {k: grads[k]}, states[k], only[k])
            np.testing.assert_allclose(params[k], only[k][k], rtol=1e-5, atol=1e-6)


def test_updates_of_an_opaque_wrapper_are_masked_as_a_whole():
    """If no part says what decays, the whole change of the parameters is masked."""
    inner = eqopt.MultiSteps(eqopt.SGD(0.5, momentum=0.9), 1)
    opt = eqopt.Cautious(inner, "none")
    p = jnp.zeros(3)
    state = opt.init(p)
    _, state = opt.update(jnp.array([1.0, 1.0, -1.0]), state, p)
    updates, _ = opt.update(jnp.array([1.0, -0.1, 0.1]), state, p)
    np.testing.assert_allclose(updates, [-0.95, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("rescale", ["share", "none"])
def test_updates_that_agree_with_gradients_are_not_masked(rescale):
    """Also if the product of update and gradient underflows."""
    g = jnp.array([1e-30, -1e-30, 1.0, -1.0])
    opt = eqopt.Cautious(eqopt.Identity(), rescale)
    np.testing.assert_array_equal(opt.update(g, opt.init(g))[0], g)


def test_the_share_is_at_least_one_in_a_thousand():
    alone = jnp.zeros(4000).at[7].set(1.0)
    opt = eqopt.Cautious(eqopt.Stateless(lambda u, _: (2 * alone - 1) * u))
    updates, _ = opt.update(jnp.ones(4000), opt.init(alone), alone)
    np.testing.assert_allclose(updates, 1000 * alone, rtol=1e-6)


def test_if_no_update_agrees_all_are_zero():
    opt = eqopt.Cautious(eqopt.Scale(-1.0))
    assert not np.any(opt.update(jnp.ones(3), opt.init(jnp.ones(3)))[0])


SIGNS = {"w": jnp.outer(jnp.array([1.0, -1, 1]), jnp.array([1.0, 1, -1, -1]))}
SIGNS["b"] = SIGNS["w"][0]
# These only turn matrices: in this problem, that is no descent.
TURN = {"Hyperball(Adam)", "SGDP"}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name)
        for method in METHODS.values()
        for row in method.laws
        if row.subject is method.subject and row.name not in TURN
    ],
)
@pytest.mark.costly
def test_every_optimizer_goes_downhill(row):
    """All leaves move, and no entry goes uphill, wherever its learning rate is."""
    opt, loss = row(), lambda params: 100 + eqopt.tree.vdot(SIGNS, params)
    opt = eqopt.Cautious(opt.inner if isinstance(opt, Evaluated) else opt)
    params = SIGNS  # so that weight decay goes downhill, too
    state = opt.init(params)
    step = interpreted(
        lambda opt, grads, state, params: opt.step(
            grads,
            state,
            params,
            value=loss(params),
            grad=grads,
            previous_grad=grads,
            value_fn=loss,
            grad_fn=lambda params: grads,
        )
    )
    for _ in range(3):
        params, state = step(opt, SIGNS, state, params)
    for new, g in zip(*map(jax.tree.leaves, (params, SIGNS)), strict=True):
        moved = (new - g) * g
        assert np.any(moved < 0) and np.all(moved <= 0)
