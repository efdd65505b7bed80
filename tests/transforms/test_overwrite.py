"""Parameters whose gradients are their next values, as in float8 layers."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def test_a_step_does_not_round():
    """Adding the difference would lose the smaller of two numbers."""
    params = {"x": jnp.array([1e8, 1.0, jnp.inf]), "y": None, "n": 3}
    grads = {"x": jnp.array([1e-3, 1e-30, 2.0]), "y": None, "n": None}
    opt = eqopt.Overwrite()
    new, state = opt.step(grads, opt.init(params), params)
    np.testing.assert_array_equal(new["x"], grads["x"])
    assert (new["y"], new["n"], state) == (None, 3, None)
    ordinary = {**params, "x": jnp.array([0.5, 1.0, 3.0])}
    updates, _ = opt.update(grads, state, ordinary)
    sums = eqopt.apply_updates(ordinary, updates)
    np.testing.assert_allclose(sums["x"], grads["x"], 1e-6, 1e-7)


def test_the_parameter_is_not_the_gradient():
    """The gradient may be donated later."""
    grads = {"x": jnp.ones(2)}
    new, _ = eqopt.Overwrite().step(grads, None, {"x": jnp.zeros(2)})
    grads["x"].delete()
    assert new["x"].tolist() == [1, 1]


def test_errors():
    opt, ones = eqopt.Overwrite(), {"x": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"Overwrite: shapes do not fit at `\['x'\]`"):
        opt.step(ones, None, {"x": jnp.ones(3)})
    with pytest.raises(TypeError, match=r"Overwrite: dtypes do not fit at `\['x'\]`"):
        opt.step({"x": ones["x"].astype(complex)}, None, ones)
