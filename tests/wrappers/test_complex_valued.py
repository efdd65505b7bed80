"""Real and imaginary parts as separate parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from optax import contrib

import eqopt


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.Adam(0.1, b2=0.9), optax.adam(0.1, b2=0.9)),
        (eqopt.RMSprop(0.1, momentum=0.9), optax.rmsprop(0.1, momentum=0.9)),
        (eqopt.ClipByGlobalNorm(0.5), optax.clip_by_global_norm(0.5)),
    ],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.slow
def test_agrees_with_optax(ours, theirs):
    opt = eqopt.SplitRealAndImaginary(ours)
    reference = contrib.split_real_and_imaginary(theirs)
    params = {"z": jr.normal(jr.key(0), (3, 2), jnp.complex64), "x": jnp.ones(4)}
    p, q = params, params
    state, reference_state = opt.init(p), reference.init(q)
    update = jax.jit(opt.update)
    for i in range(12):
        grads = jax.tree.map(lambda x, i=i: jr.normal(jr.key(i), x.shape, x.dtype), p)
        updates, state = update(grads, state, p)
        p = eqopt.apply_updates(p, updates)
        with jax.numpy_dtype_promotion("standard"):
            expected, reference_state = reference.update(grads, reference_state, q)
            q = optax.apply_updates(q, expected)
        for name in params:
            np.testing.assert_allclose(p[name], q[name], rtol=1e-5, atol=1e-6)
    assert not jnp.allclose(p["z"], params["z"])


MODEL = {"z": jnp.array([1 + 2j]), "w": jnp.ones(2, jnp.bfloat16), "f": jnp.tanh}
GRADS = {"z": jnp.array([2 - 1j]), "w": jnp.full(2, 0.01), "f": None}


@pytest.mark.parametrize(
    "around",
    [
        lambda opt: opt,
        lambda opt: eqopt.Masked(opt, {"z": False, "w": True, "f": False}),
    ],
    ids=["alone", "masked"],
)
def test_full_params(around):
    """The hidden part belongs to the pairs, or to a part of the model without them."""
    stored = eqopt.StoreParams(eqopt.SGD(1.0), eqopt.storage.SplitMasterWeights())
    opt = around(eqopt.SplitRealAndImaginary(stored))
    model, state = opt.step(GRADS, opt.init(MODEL), MODEL)
    full = opt.full_params(state, model)
    np.testing.assert_allclose(full["w"], 0.99, rtol=1e-6)
    assert eqx.tree_equal(full["z"], model["z"])
    assert full["f"] is jnp.tanh
