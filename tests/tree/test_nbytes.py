"""What a state costs, counted before a run."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.tree._slots import owners_of

from ..laws.registry import law


PARAMS = {"w": jnp.ones((64, 64)), "b": jnp.ones(64), "n": 3}
OPT = eqopt.StoreState(eqopt.AdamW(1e-3), eqopt.storage.BlockwiseQuantized())


def test_all_arrays_are_counted():
    state = OPT.init(PARAMS)
    counted = eqopt.tree.nbytes(state)
    assert counted.total == sum(x.nbytes for x in jax.tree.leaves(state))
    shapes = eqx.filter_eval_shape(OPT.init, PARAMS)
    assert eqopt.tree.nbytes(shapes) == counted
    mu = 64 * 64 + 16 * 4 + 64 * 4  # codes, scales, and a bias in float32
    assert counted.slots["ScaleByAdamState.mu"] == {"": mu}


def test_groups():
    is_matrix = eqopt.groups.leaf(lambda x: x.ndim == 2)
    state = eqopt.Adam(1e-3).init(PARAMS)
    counted = eqopt.tree.nbytes(state, PARAMS, is_matrix)
    assert counted.slots["ScaleByAdamState.nu"] == {"True": 4 * 64**2, "False": 4 * 64}
    assert counted.slots["ScaleByAdamState.count"] == {"": 4}
    assert counted.parameters == 64**2 + 64


class AgentState(eqx.Module):
    """A model, in spite of its name."""

    first: Any
    second: Any


@law({"Adam", "SOAP", "Partition(SGD)"})
@pytest.mark.filterwarnings("ignore:Partition. no parameter")
def test_arrays_belong_to_the_same_parameter_in_any_container(row):
    """A chain's state and the two factors of a matrix look like parameters in a tuple."""
    shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    pair = shape(6, 3), shape(3, 3)
    expected, *found = (
        owners_of(params, eqx.filter_eval_shape(row().init, params))
        for params in ({"first": pair[0], "second": pair[1]}, pair, AgentState(*pair))
    )
    assert found == [expected, expected]


def test_groups_of_a_tuple():
    params = jnp.ones((100, 10)), jnp.ones((10, 10))
    soap = eqopt.SOAP(1e-3)
    for opt, sizes in ((eqopt.Adam(1e-3), (2000, 200)), (soap, (22200, 600))):
        counted = eqopt.tree.nbytes(opt.init(params), params, ("a", "b"))
        rows = counted.slots.values()
        assert [sum(r.get(x, 0) for r in rows) for x in "ab"] == [4 * n for n in sizes]
        assert counted.slots["ScaleByLearningRateState.count"].keys() == {""}
        found = [route.nbytes for route in eqopt.groups.routes(opt, params)]
        assert found == [4 * n for n in sizes]


def test_the_table():
    state = eqopt.Adam(1e-3).init(PARAMS)
    head, *rows, total = str(eqopt.tree.nbytes(state, PARAMS)).splitlines()
    assert head.split() == ["slot", "bytes", "per", "parameter"]
    assert rows[1].split() == ["ScaleByAdamState.mu", "16,640", "4.000"]
    assert total.split() == ["total", "33,292", "8.003"]
    labels = {"w": "matrix", "b": "vector", "n": "none"}
    head, *_, total = str(eqopt.tree.nbytes(state, PARAMS, labels)).splitlines()
    assert head.split()[:5] == ["slot", "(none)", "vector", "matrix", "bytes"]
    assert total.split()[1:5] == ["12", "512", "32,768", "33,292"]
