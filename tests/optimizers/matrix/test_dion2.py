"""Dion2, beyond the laws and the comparison by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import PartitionSpec as P

import eqopt

from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


def scale_by_dion2(fraction, **arguments):
    return eqopt.ScaleByDion2(fraction, weight_dimension_numbers=NUMBERS, **arguments)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
def test_with_a_fraction_of_one_it_is_heavy_ball_muon(dtype, x64):
    with x64():
        whole = scale_by_dion2(1, ef_decay=0.8, coefficients="cans", scale="none")
        muon = eqopt.Chain(
            eqopt.Trace(0.8),
            eqopt.Orthogonalize("cans", weight_dimension_numbers=NUMBERS),
        )
        grads = [jr.normal(jr.key(i), (4, 6), dtype) for i in range(4)]
        states = whole.init(grads[0]), muon.init(grads[0])
        for g in grads:
            u, left = whole.update(g, states[0])
            expected, right = muon.update(g, states[1])
            states = left, right
            np.testing.assert_allclose(u, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "b2", "side"),
    [((4, 6), None, 0), ((6, 4), None, 1), ((4, 4), None, 0), ((6, 4), 0.9, 0)],
)
def test_the_largest_rows_move_and_the_others_wait(shape, b2, side):
    opt = scale_by_dion2(0.5, ef_decay=0.25, b2=b2)
    g = jr.normal(jr.key(0), shape)
    updates, state = opt.update(g, opt.init(g))
    moved = jnp.any(updates != 0, 1 - side)
    sizes = jnp.sum(jnp.abs(g), 1 - side)
    assert moved.sum() == shape[side] // 2
    assert sizes[moved].min() > sizes[~moved].max()
    factors = jnp.expand_dims(jnp.where(moved, 0.25, 1.0), 1 - side)
    np.testing.assert_allclose(state.mu, factors * g, rtol=1e-6)
    # The rows that waited move later.
    seen = moved
    for _ in range(3):
        updates, state = opt.update(jnp.zeros_like(g), state)
        seen |= jnp.any(updates != 0, 1 - side)
    assert seen.all()


def test_at_least_one_row():
    g = jnp.ones((3, 5))
    updates, _ = (opt := scale_by_dion2(0.01)).update(g, opt.init(g))
    assert jnp.any(updates != 0, 1).sum() == 1


@pytest.mark.parametrize("b2", [None, 0.9])
def test_zeros(b2):
    opt, zeros = scale_by_dion2(0.5, b2=b2), jnp.zeros((4, 6))
    move = lambda g: opt.update(g, opt.init(zeros))[0]
    assert not move(zeros).any()
    gradient = jax.grad(lambda g: jnp.sum(jnp.sin(move(g))))(zeros)
    assert jnp.isfinite(gradient).all()


def test_all_rows_decay():
    params = [jnp.ones((4, 6))]
    opt = eqopt.Dion2(0.1, weight_decay=0.5)
    (moved,), _ = opt.step([jnp.zeros((4, 6))], opt.init(params), params)
    np.testing.assert_allclose(moved, 0.95 * params[0], rtol=1e-6)


@pytest.mark.parametrize("fraction", ["half", lambda count: 0.5])
def test_no_fraction(fraction):
    with pytest.raises(
        TypeError, match="Dion2: `fraction` must be a Python number, be"
    ):
        eqopt.Dion2(0.1, fraction)


def test_a_shard_is_a_block():
    """Inside `shard_map`, each shard is a matrix by itself, and nothing is sent."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("x",), axis_types=auto, devices=jax.devices()[:2])
    g = jr.normal(jr.key(0), (8, 6))
    blocks = eqopt.MatrixDimensionNumbers(1, 0, output_blocks=2)
    opt = eqopt.ScaleByDion2(0.5, weight_dimension_numbers=blocks)
    expected, _ = opt.update(g, opt.init(g))
    own = eqopt.ScaleByDion2(
        0.5, weight_dimension_numbers=eqopt.MatrixDimensionNumbers(1, 0)
    )
    update = lambda g: own.update(g, own.init(g))[0]
    update = jax.jit(
        jax.shard_map(update, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    )
    np.testing.assert_allclose(update(g), expected, rtol=1e-5, atol=1e-6)
    assert not collectives(update.lower(g).compile().as_text())
