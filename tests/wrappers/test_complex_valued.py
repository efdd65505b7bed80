"""Real and imaginary parts as separate parameters."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


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
