"""State in the memory of the host. The laws have it around SGD and a nested chain."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import eqopt

from ..laws.subjects import assert_close, grads_of


PARAMS = {"w": jnp.ones((64, 96)), "b": jnp.ones(96)}
HALF = {"w": jnp.ones((64, 96), jnp.bfloat16)}
INNER = {
    "AdamW": lambda: eqopt.AdamW(1e-2),
    "Muon": lambda: eqopt.Muon(1e-2),
    "8 bits": lambda: eqopt.StoreState(
        eqopt.AdamW(1e-2), eqopt.storage.BlockwiseQuantized()
    ),
    "4 bits": lambda: eqopt.StoreState(
        eqopt.AdamW(1e-2), eqopt.storage.BlockwiseQuantized(4)
    ),
    "rounded": lambda: eqopt.StoreState(
        eqopt.AdamW(1e-2), eqopt.storage.StochasticRounding()
    ),
    "skipped": lambda: eqopt.ApplyIfFinite(eqopt.AdamW(1e-2), 3),
    "average": lambda: eqopt.ParamEMA(eqopt.AdamW(1e-2)),
    "float16": lambda: eqopt.AdamW(1e-2, mu_dtype=jnp.float16),
}


def trained(opt, params, donate, steps=3):
    state = jax.jit(opt.init)(params)
    step = jax.jit(opt.step, donate_argnums=(0, 1, 2) if donate else ())
    params = jax.tree.map(jnp.array, params)
    for i in range(steps):
        params, state = step(grads_of(params, i), state, params)
    return params, state


def memories(state, least=2000):
    """The memories of the arrays with at least so many elements."""
    return {x.sharding.memory_kind for x in jax.tree.leaves(state) if x.size >= least}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("name", INNER)
@pytest.mark.slow
def test_the_same_from_the_host(name, donate):
    """Also if everything is donated, and JAX pairs arguments with results."""
    expected, plain = trained(INNER[name](), PARAMS, False)
    opt = eqopt.Offload(INNER[name]())
    params, state = trained(opt, PARAMS, donate)
    assert_close(params, expected)
    assert memories(params) == memories(plain) == {"device"}
    assert memories(state) == {"pinned_host"}
    assert eqopt.tree.nbytes(state) == eqopt.tree.nbytes(plain)
    averaged = opt.eval_params(state, params)
    assert_close(averaged, INNER[name]().eval_params(plain, expected))


@pytest.mark.slow
def test_hidden_bits_are_on_the_host():
    opt = eqopt.StoreParams(eqopt.AdamW(1e-2), eqopt.storage.SplitMasterWeights())
    expected, plain = trained(opt, HALF, False)
    params, state = trained(eqopt.Offload(opt), HALF, False)
    assert memories(state) == {"pinned_host"}
    full = eqopt.Offload(opt).full_params(state, params)
    assert_close(full, opt.full_params(plain, expected))
    assert full["w"].dtype == jnp.float32


def test_small_arrays_stay():
    _, state = trained(eqopt.Offload(eqopt.AdamW(1e-2), min_size=10**6), PARAMS, False)
    assert memories(state, 1) == {"device"}


@pytest.mark.parametrize("kind", ["file", "Equinox"])
@pytest.mark.slow
def test_checkpoints(kind, tmp_path):
    opt = eqopt.Offload(INNER["8 bits"]())
    params, state = trained(opt, PARAMS, False)
    like = eqx.filter_eval_shape(opt.init, PARAMS)
    if kind == "file":
        eqopt.checkpoint.save(tmp_path / "state", state)
        read = eqopt.checkpoint.load(tmp_path / "state", like)
        assert memories(read) == {"pinned_host"}
    else:
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, state)
        file.seek(0)
        read = eqx.tree_deserialise_leaves(file, like)
    step = jax.jit(opt.step)
    expected = step(grads_of(params, 9), state, params)
    resumed = step(grads_of(params, 9), read, params)
    assert eqx.tree_equal(resumed, expected)
    assert memories(resumed[1]) == {"pinned_host"}


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.slow
def test_shards(axis_type):
    types = (getattr(jax.sharding.AxisType, axis_type),)
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",), axis_types=types)
    split = NamedSharding(mesh, P("x"))
    params = jax.device_put(PARAMS, split)
    opt = eqopt.Offload(eqopt.AdamW(1e-2))
    expected, _ = trained(eqopt.AdamW(1e-2), PARAMS, False)
    for init in (opt.init, jax.jit(opt.init)):
        grads = [jax.device_put(grads_of(PARAMS, i), split) for i in range(3)]
        with jax.set_mesh(mesh):
            new, state = params, init(params)
            for g in grads:
                new, state = jax.jit(opt.step)(g, state, new)
        large = [x for x in jax.tree.leaves(state) if x.size >= 4096]
        on_host = split.with_memory_kind("pinned_host")
        assert len(large) == 2
        assert all(x.sharding.is_equivalent_to(on_host, x.ndim) for x in large)
        assert_close(new, expected)
