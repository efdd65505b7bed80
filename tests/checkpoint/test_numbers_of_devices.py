"""States whose arrays depend on the number of devices say how to convert them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import eqopt
from eqopt.checkpoint import CheckpointError, load, save


PARAMS = {name: jnp.ones((6, 4)) for name in "abc"}
MAKERS = {
    "DistributeMatrices": lambda mesh: eqopt.DistributeMatrices(
        eqopt.SOAP(0.1), mesh=mesh
    ),
    "ZeRO1": lambda mesh: eqopt.ZeRO1(eqopt.Adam(0.1), mesh=mesh),
}


def abstract(devices):
    return AbstractMesh((devices,), ("data",), (AxisType.Auto,))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_another_number_of_devices(make, tmp_path):
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    save(tmp_path / "run.eqx", jax.jit(make(mesh).init)(PARAMS))
    of_4, of_8 = (eqx.filter_eval_shape(make(abstract(n)).init, PARAMS) for n in (4, 8))
    with pytest.raises(CheckpointError, match="AbstractMesh` of as many"):
        load(tmp_path / "run.eqx", of_4)

    # What the message says.
    few = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
    state = eqopt.tree.migrate(make(few), load(tmp_path / "run.eqx", of_8), PARAMS)
    assert eqx.tree_equal(state, make(few).init(PARAMS))


def test_other_differences(tmp_path):
    save(tmp_path / "run.eqx", eqopt.Adam(0.1).init(PARAMS))
    with pytest.raises(CheckpointError, match=r"another path\.$"):
        load(tmp_path / "run.eqx", eqopt.Lion(0.1).init(PARAMS))
