"""What all methods for matrices share: stacks, gradients of low rank, and fallbacks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...methods import BY_FAMILY
from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow

METHODS = {method.name: method for method in BY_FAMILY["matrix"]}
# Their steps depend on several matrices, or on the index of a matrix.
OF_ALL = {
    "APOLLO": "each matrix has other random projections",
    "MARS": "clips the gradients of a leaf, which may be a stack, together",
}
# Muon falls back to Adam, and Hyperball's fallback takes no separate learning rate.
OTHER_FALLBACKS = {"GaLore", "Hyperball", "MARS", "Muon", "Scion"}
STACKED = {name: METHODS[name].ours(0.1) for name in sorted(METHODS.keys() - OF_ALL)}
STACKED["APOLLO, singular vectors"] = eqopt.APOLLO(0.1, 2, proj="svd")
# By default, the gaps between refreshes are longer than the training here.
GAPS = {"precondition_frequency", "update_proj_gap"}


def trained(opt, params, rank=None, mapped=lambda fn: fn):
    names = GAPS.intersection(field.name for field in dataclasses.fields(opt))
    opt = dataclasses.replace(opt, **dict.fromkeys(names, 2))
    state, step = mapped(opt.init)(params), jax.jit(mapped(opt.step))
    rng = np.random.default_rng(0)
    for _ in range(6):
        grads = jax.tree.map(lambda p: _gradient(rng, p, rank), params)
        params, state = step(grads, state, params)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(params))
    return params


def _gradient(rng, p, rank):
    if rank is None or p.ndim < 2:
        return jnp.asarray(rng.normal(size=p.shape), p.dtype)
    left, right = (rng.normal(size=(n, rank)) for n in p.shape)
    return jnp.asarray(left @ right.T, p.dtype)


@pytest.mark.parametrize("name", STACKED)
def test_stacked_matrices_are_trained_one_by_one(name, x64):
    opt = eqopt.tree.set(STACKED[name], weight_dimension_numbers=NUMBERS)
    with x64():
        start = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 4)))
        together, one_by_one = trained(opt, start), trained(opt, start, mapped=jax.vmap)
    np.testing.assert_allclose(together, one_by_one, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_of_low_rank(name, rank, dtype):
    """Most singular values are zero, and so are most eigenvalues of the factors."""
    params = {"w": jnp.ones((5, 4), dtype), "b": jnp.ones(3, dtype)}
    new = trained(METHODS[name].ours(0.01), params, rank=rank)
    for x in jax.tree.leaves(new):
        assert jnp.abs(x).max() < 10


@pytest.mark.parametrize("name", sorted(METHODS.keys() - OTHER_FALLBACKS))
def test_parameters_that_are_not_matrices_follow_adamw(name):
    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(3)}
    opt = METHODS[name].subject(0.1, weight_decay=0.3)
    found = trained(opt, params)["b"]
    adamw = eqopt.AdamW(0.1, b2=0.95, weight_decay=0.3)
    np.testing.assert_allclose(found, trained(adamw, params)["b"], rtol=1e-6)
