"""Codes and scales are sharded like their parameter, and no block is on two devices."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt


SLOW = pytest.mark.slow

CASES = [
    pytest.param(AxisType.Auto, P("x"), (32, 132), 8, id="rows"),
    pytest.param(AxisType.Auto, P(None, "x"), (5, 1032), 4, id="columns", marks=SLOW),
    pytest.param(AxisType.Auto, P(None, "x", None), (2, 64, 33), 8, marks=SLOW),
    pytest.param(AxisType.Auto, P("x"), (8 * 515,), 4, id="tails", marks=SLOW),
    pytest.param(AxisType.Explicit, P("x"), (32, 132), 4, id="explicit"),
    pytest.param(AxisType.Explicit, P(None, "x"), (5, 1032), 8, marks=SLOW),
]


@pytest.mark.parametrize(("kind", "spec", "shape", "bits"), CASES)
@pytest.mark.slow
def test_an_eighth_on_each_device(kind, spec, shape, bits):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    whole = jnp.linspace(-1, 1, jnp.ones(shape).size).reshape(shape)
    params = jax.device_put(whole, NamedSharding(mesh, spec))
    storage = eqopt.storage.BlockwiseQuantized(bits)
    opt = eqopt.StoreState(eqopt.AdamW(1e-2), storage)
    state = opt.init(params)
    check_shares(state)
    step = jax.jit(
        lambda params, state, grads: opt.step(grads, state, params),
        donate_argnums=(0, 1),
    )
    compiled = step.lower(params, state, jnp.cos(7 * params)).compile().as_text()
    assert not re.search(
        "all-gather|all-reduce|collective-permute|all-to-all", compiled
    )
    for _ in range(3):
        params, state = step(params, state, jnp.cos(7 * params))
    check_shares(state)
    # Nearly what one device makes of it, whose blocks are others.
    alone = opt.init(whole)
    for _ in range(3):
        whole, alone = step(whole, alone, jnp.cos(7 * whole))
    limit = 0.06 if bits == 4 else 0.01
    assert jnp.abs(jax.device_get(params) - jax.device_get(whole)).max() < limit


def check_shares(state):
    for name in ("mu", "nu"):
        stored = eqopt.tree.get(state, name)
        for x in (stored.codes, stored.scales):
            [share] = {shard.data.size for shard in x.addressable_shards}
            assert share * 8 == x.size
