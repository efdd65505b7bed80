"""Blocks that control norms, beyond the laws: of which arrays, and how."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...parity.by_hand import B1, B2, EPS, adam_by_hand
from ...parity.matrices import NUMBERS


RNG = np.random.default_rng(0)
P, *GRADS = RNG.normal(size=(31, 4, 3))
ADAM = eqopt.ScaleByAdam(B1, B2, EPS)
# By row, or for the whole matrix.
AXES = {"matrix": (0, 1), "row": 1}
OF_MATRICES = {"weight_dimension_numbers": NUMBERS}


def norms(x, per="matrix"):
    return np.sqrt(np.sum(x**2, AXES[per], keepdims=True))


def trained(opt, x64, p=P):
    """The parameters after each step."""
    with x64():
        params = jnp.asarray(p)
        state = opt.init(params)
        step = interpreted(lambda *args: opt.step(*args))
        for g in GRADS:
            params, state = step(jnp.asarray(g), state, params)
            yield np.asarray(params)


def assert_follows(opt, x64, by_hand):
    p = P
    directions = adam_by_hand(GRADS, B1, B2, EPS)
    for u, found in zip(directions, trained(opt, x64), strict=True):
        p = by_hand(p, u)
        np.testing.assert_allclose(found, p, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("per", ["matrix", "row"])
@pytest.mark.parametrize("radius", ["current", "initial", 2.5])
@pytest.mark.costly
def test_hyperball(radius, per, x64):
    """It follows its equations, and norms stay constant for any gradients."""
    opt = eqopt.Hyperball(ADAM, 0.1, radius, per, **OF_MATRICES)
    kept = radius if radius == 2.5 else norms(P, per)

    def by_hand(p, u):
        q = p - 0.1 * norms(p, per) * u / norms(u, per)
        return kept * q / norms(q, per)

    assert_follows(opt, x64, by_hand)
    *_, last = trained(opt, x64)
    np.testing.assert_allclose(
        norms(last, per), np.broadcast_to(kept, norms(P, per).shape)
    )


def floored(p, u, per):
    return p - 0.1 * u * np.maximum(1, 0.9 * norms(p, per) / norms(u, per))


def relative(p, u, per):
    return p - 0.1 * u * norms(p, per) / norms(u, per)


@pytest.mark.parametrize("per", ["matrix", "row"])
@pytest.mark.parametrize(
    ("block", "by_hand"),
    [
        (functools.partial(eqopt.UpdateNormFloor, 0.9), floored),
        (eqopt.RelativeUpdate, relative),
    ],
    ids=["floor", "relative"],
)
def test_by_hand(block, by_hand, per, x64):
    step = eqopt.ScaleByLearningRate(0.1)
    opt = eqopt.Chain(ADAM, block(per=per, **OF_MATRICES), step)
    assert_follows(opt, x64, lambda p, u: by_hand(p, u, per))


@pytest.mark.parametrize("of", ["norm", "component"])
def test_brake(of, x64):
    brake = eqopt.RadialBrake(0.25, 0.75, of, **OF_MATRICES)
    opt = eqopt.Chain(ADAM, eqopt.ScaleByLearningRate(0.1), brake)

    def by_hand(p, u):
        q = p - 0.1 * u
        radial = -0.1 * np.sum(u * p) / norms(p)
        change = norms(q) - norms(p) if of == "norm" else radial
        braked = (0.25 if change > 0 else 0.75) * change
        q = q if of == "norm" else q + (braked - radial) * p / norms(p)
        return q * (norms(p) + braked) / norms(q)

    assert_follows(opt, x64, by_hand)


@pytest.mark.parametrize(
    ("of", "inward", "step"), [("norm", 2, 0.6), ("component", 1, 2)]
)
def test_a_step_that_leads_beyond_zero_ends_there(of, inward, step):
    """A norm cannot be negative, so the matrix is not reflected."""
    brake = eqopt.RadialBrake(inward=inward, of=of, **OF_MATRICES)
    p = jnp.asarray(P, jnp.float32)
    updates, _ = brake.update(-step * p, brake.init(p), p)
    np.testing.assert_allclose(p + updates, 0, atol=1e-6)


BLOCKS = {
    "relative": eqopt.RelativeUpdate(),
    "floor": eqopt.UpdateNormFloor(),
    "brake": eqopt.RadialBrake(),
    "brake, component": eqopt.RadialBrake(of="component"),
    "keep": eqopt.KeepNorm(),
    "keep, initial": eqopt.KeepNorm("initial"),
    "keep, 1": eqopt.KeepNorm(1.0),
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.costly
def test_zeros_and_vectors(block):
    """A zero matrix can move, a zero gradient gives no NaN, vectors are unchanged."""
    params = {"zero": jnp.zeros((2, 3)), "one": jnp.ones((2, 3)), "b": jnp.ones(3)}
    g = jnp.arange(6.0).reshape(2, 3)
    grads = {"zero": g, "one": jnp.zeros((2, 3)), "b": 3 * jnp.ones(3)}
    state = block.init(params)
    updates, _ = block.update(grads, state, params)
    np.testing.assert_allclose(updates["zero"], g, rtol=1e-6)
    np.testing.assert_array_equal(updates["b"], grads["b"])
    assert np.isfinite(updates["one"]).all()

    def total(grads, params):
        return sum(map(jnp.sum, jax.tree.leaves(block.update(grads, state, params)[0])))

    for slopes in jax.grad(total, (0, 1))(grads, params):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))


@pytest.mark.parametrize(
    "inner",
    [
        eqopt.Adam(0.1),
        eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Muon(0.1)),
        eqopt.ScaleByMuown(0.1),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_second_learning_rate(inner):
    with pytest.raises(ValueError, match=f"but {type(inner).__name__} has one. Pass"):
        eqopt.Hyperball(inner, 0.1)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Hyperball(ADAM, 0.1),
        eqopt.Hyperball(ADAM, 0.1, "initial"),
        eqopt.Chain(eqopt.SGD(0.1), eqopt.RadialBrake()),
        eqopt.Chain(eqopt.SGD(0.1), eqopt.RadialBrake(of="component")),
        eqopt.Hyperball(ADAM, 0.1, "initial", per="row"),
        eqopt.Chain(eqopt.UpdateNormFloor(per="row"), eqopt.Scale(-0.1)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("shape", [(96, 64), (3, 96, 64)], ids=str)
@pytest.mark.costly
def test_nothing_is_transposed(opt, shape):
    """Reading an array across its memory order takes several times as long."""
    params = jnp.ones(shape)
    inputs_first = eqopt.MatrixDimensionNumbers(-2, -1)
    opt = eqopt.tree.set(opt, weight_dimension_numbers=inputs_first)
    step = jax.jit(lambda *args: opt.step(*args))
    program = step.lower(params, opt.init(params), params).compile().as_text()
    assert not re.search(r" transpose\(|\]\{0,1|\]\{1,2,0", program)
