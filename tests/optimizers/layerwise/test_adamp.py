"""AdamP and SGDP: what is projected, and how much each parameter decays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


KEY = jr.key(0)
ALWAYS = 1e3  # a delta that projects all gradients
Numbers = eqopt.MatrixDimensionNumbers


def normal_like(tree, seed=1):
    leaves, treedef = jax.tree.flatten(eqx.filter(tree, eqx.is_array))
    keys = jr.split(jr.key(seed), len(leaves))
    return treedef.unflatten(
        [jr.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    )


def twice(opt, model):
    """The updates of the second step, in which momentum and gradient differ."""
    params = eqx.filter(model, eqx.is_array)
    state = opt.init(params)
    _, state = opt.update(normal_like(params, 1), state, params)
    return opt.update(normal_like(params, 2), state, params)[0]


@pytest.mark.parametrize("shape", [(5,), (5, 1, 1), ()])
@pytest.mark.costly
def test_parameters_that_are_not_weights_follow_adamw(shape):
    """No part of its step is removed, and it decays in full."""
    layer = eqx.nn.LayerNorm(shape) if shape != (5, 1, 1) else [jnp.ones(shape)]
    numbers = {"weight_dimension_numbers": eqopt.groups.layer_matrices}
    ours = twice(eqopt.AdamP(0.1, delta=ALWAYS, weight_decay=0.5, **numbers), layer)
    adamws = twice(eqopt.AdamW(0.1, weight_decay=0.5), layer)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(adamws), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_projection_of_complex_weights():
    """Only the real part of the inner product is removed: a change of phase stays."""
    p = jnp.array([[1.0 + 0j, 1j]])
    opt = eqopt.ScaleBySGDP(
        delta=ALWAYS, weight_dimension_numbers=Numbers(-1, -2), eps=0.0
    )
    g = (2 + 3j) * p
    updates, _ = opt.update(g, opt.init(p), p)
    np.testing.assert_allclose(updates, 3j * p, atol=1e-6)
