"""Norms of sharded arrays add squares, and devices exchange only a few numbers."""

import contextlib

import jax
import jax.random as jr
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt


SHAPE = 16, 24
SPECS = {"both": P("data", "model"), "one": P(None, "model")}
# All leaves, each leaf, and each row.
OPTS = {
    "global": eqopt.ClipByGlobalNorm(0.1),
    "leaf": eqopt.LAMB(0.1),
    "row": eqopt.AdaptiveGradClip(0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [AxisType.Auto, AxisType.Explicit], ids=lambda x: x.name
)
@pytest.mark.parametrize("name", OPTS)
def test_norms_of_shards(name, kind):
    opt, keys = OPTS[name], jr.split(jr.key(0))
    params = {
        name: jr.normal(key, SHAPE) for name, key in zip(SPECS, keys, strict=True)
    }
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    places = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    step = jax.jit(lambda params: opt.update(params, opt.init(params), params)[0])
    expected = jax.device_get(step(params))
    with jax.set_mesh(mesh) if mesh.explicit_axes else contextlib.nullcontext():
        program = step.lower(jax.device_put(params, places)).compile()
        found = program(jax.device_put(params, places))
    for key, x in expected.items():
        np.testing.assert_allclose(found[key], x, rtol=1e-6, atol=1e-7)
    # A row has a norm of its own, for each of the leaves and of their gradients.
    most = 4 * 2 * len(SPECS) * max(SHAPE) if name == "row" else 32
    sent = collectives(program.as_text())
    assert {one.kind for one in sent} == {"all-reduce"}
    assert sum(one.size for one in sent) <= most
