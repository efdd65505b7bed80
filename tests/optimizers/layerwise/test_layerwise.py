"""Layerwise optimizers, beyond the laws and the comparison with Optax."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


def normal(seed, *shape):
    return jr.normal(jr.key(seed), shape)


def steps(opt, params, grads):
    """The parameters after a step with each of the gradients, and the state."""
    state = opt.init(params)
    for g in grads:
        params, state = opt.step(g, state, params)
    return params, state


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.costly
def test_clipping_inside_equals_clipping_afterwards(factored):
    make = lambda **data: eqopt.ScaleByFactoredRMS(
        factored, min_dim_size_to_factor=2, **data
    )
    inside = make(clipping_threshold=0.3)
    behind = eqopt.Chain(make(), eqopt.ClipByBlockRMS(0.3))
    params = normal(0, 4, 3)
    grads = [normal(1 + i, 4, 3) for i in range(3)]
    ends = [steps(opt, params, grads)[0] for opt in (inside, behind)]
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_what_is_factored_by_default():
    params = {
        "large": jnp.ones((2, 130, 128)),
        "small": jnp.ones((200, 100)),
        "vector": jnp.ones(300),
        "none": None,
    }
    state = jax.jit(eqopt.Adafactor(0.1).init)(params)[0]
    shapes = lambda tree: {k: getattr(x, "shape", x) for k, x in tree.items()}
    unused = {"small": (), "vector": (), "none": None}
    assert shapes(state.v_row) == {"large": (2, 128), **unused}
    assert shapes(state.v_col) == {"large": (2, 130), **unused}
    v = {"large": (), "small": (200, 100), "vector": (300,), "none": None}
    assert shapes(state.v) == v


def test_factored_rms_of_nothing():
    """An empty array is not factored, because its rows have no mean."""
    params = {"w": jnp.ones((3, 4)), "empty": jnp.ones((0, 5))}
    numbers = eqopt.MatrixDimensionNumbers()
    opt = eqopt.ScaleByFactoredRMS(weight_dimension_numbers=numbers)
    updates, state = opt.update(params, opt.init(params), params)
    assert updates["empty"].shape == state.v["empty"].shape == (0, 5)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))
