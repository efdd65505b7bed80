"""Dion2, beyond the laws and the comparison by hand."""

import jax
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
