"""Codes and scales are sharded like their leaf, and a step sends little or nothing."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
ALL, CODES, NOTHING = (8, 8), (8, 1), (1, 1)  # into how many parts codes and scales go
CASES = [
    # Each device has whole blocks, so nothing is sent.
    (AUTO, P("x"), (32, 132), 8, ALL, 0),
    (AUTO, P(None, "x"), (5, 1536), 4, ALL, 0),
    (AUTO, P(None, "x", None), (2, 64, 33), 8, ALL, 0),
    (AUTO, P("x"), (8 * 520,), 4, ALL, 0),
    (EXPLICIT, P("x"), (32, 132), 4, ALL, 0),
    (EXPLICIT, P(None, "x"), (5, 1536), 8, ALL, 0),
    # Large enough for two passes, which on other meshes have an axis of blocks.
    (EXPLICIT, P(None, "x"), (64, 1024), 8, CODES, 5000),
    # A block is on two devices, which exchange its largest modulus and, on a CPU, whether
    # it has a NaN.
    (AUTO, P(None, "x"), (16, 768), 8, CODES, 1100),
    (EXPLICIT, P(None, "x"), (16, 768), 8, CODES, 1100),
    # No block of more than 128 numbers divides a row: XLA exchanges numbers.
    (AUTO, P(None, "x"), (4, 8 * 521), 8, CODES, 10**6),
    # The codes on a device would begin with half a byte.
    (AUTO, P(None, "x"), (4, 8 * 521), 4, NOTHING, 10**6),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "spec", "shape", "bits", "parts", "most"), CASES)
def test_codes_and_scales(kind, spec, shape, bits, parts, most):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    whole = jnp.linspace(-1, 1, np.prod(shape)).reshape(shape)
    params = jax.device_put(whole, NamedSharding(mesh, spec))
    storage = eqopt.storage.BlockwiseQuantized(bits)
    opt = eqopt.StoreState(eqopt.AdamW(1e-2), storage, eqopt.groups.everything)
    alone = opt.init(whole)

    def check(state):
        assert jax.tree.structure(state) == jax.tree.structure(alone)
        for name in ("mu", "nu"):
            stored = eqopt.tree.get(state, name)
            for x, part in zip((stored.codes, stored.scales), parts, strict=True):
                assert x.addressable_shards[0].data.size == x.size / part

    step = jax.jit(lambda params, state, grads: opt.step(grads, state, params))
    with jax.set_mesh(mesh) if kind == EXPLICIT else contextlib.nullcontext():
        state = jax.jit(opt.init)(params)
        check(opt.init(params))
        check(state)
        compiled = step.lower(params, state, params).compile()
        for _ in range(2):
            params, state = step(params, state, jnp.cos(7 * params))
        check(state)
    assert sum(one.size for one in collectives(compiled.as_text())) <= most
    for _ in range(2):
        whole, alone = step(whole, alone, jnp.cos(7 * whole))
    np.testing.assert_allclose(params, whole, 1e-5, 1e-7)
