"""State in the memory of the host. The laws have it around SGD and a nested chain."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

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
    "rounded": lambda: eqopt.StoreState(
        eqopt.AdamW(1e-2), eqopt.storage.StochasticRounding()
    ),
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


@pytest.mark.slow
def test_checkpoints(tmp_path):
    opt = eqopt.Offload(INNER["8 bits"]())
    params, state = trained(opt, PARAMS, False)
    like = eqx.filter_eval_shape(opt.init, PARAMS)
    eqopt.checkpoint.save(tmp_path / "state", state)
    read = eqopt.checkpoint.load(tmp_path / "state", like)
    assert memories(read) == {"pinned_host"}
    step = jax.jit(opt.step)
    expected = step(grads_of(params, 9), state, params)
    resumed = step(grads_of(params, 9), read, params)
    assert eqx.tree_equal(resumed, expected)
    assert memories(resumed[1]) == {"pinned_host"}
