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


def test_steps_may_be_orthogonal_to_the_whole_layer():
    """If the gradients of all rows cancel, although none is orthogonal to its row."""
    p = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    g = jnp.array([[1.0, 0.0], [0.0, -1.0]])
    layer = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(2, 2, False, key=KEY), p)
    opt = eqopt.ScaleBySGDP(0.5, delta=0.5, wd_ratio=0.1)
    state = opt.init(layer)
    state = eqx.tree_at(lambda s: s.trace.weight, state, jnp.eye(2) * 6)
    updates, _ = opt.update(eqx.tree_at(lambda m: m.weight, layer, g), state, layer)
    # The momentum, [[4, 0], [0, 2]], without its mean along the identity.
    np.testing.assert_allclose(updates.weight, g, atol=1e-6)


@pytest.mark.parametrize(("momentum", "decay"), [(None, 0.5), (0.75, 2.0)])
@pytest.mark.costly
def test_decay_of_weights_that_are_projected(momentum, decay):
    """A zero gradient is orthogonal to them. The mask excludes biases from decay."""
    layer = eqx.nn.Linear(3, 4, key=KEY)
    arguments = {"wd_ratio": 0.1, "weight_decay": 0.5}
    of_weights = lambda params: jax.tree.map(lambda p: p.ndim == 2, params)
    for mask, bias in {None: decay, of_weights: 0}.items():
        if momentum is None:
            opt = eqopt.ScaleByAdamP(**arguments, mask=mask)
        else:
            opt = eqopt.ScaleBySGDP(momentum, **arguments, mask=mask)
        zeros = eqopt.tree.zeros_like(layer)
        updates, _ = opt.update(zeros, opt.init(layer), layer)
        np.testing.assert_allclose(updates.weight, 0.1 * decay * layer.weight, 1e-6)
        np.testing.assert_allclose(updates.bias, bias * layer.bias, 1e-6)


@pytest.mark.slow
def test_dimension_numbers_determine_the_weights():
    """`None` excludes an array. By default, other arrays have their inputs first."""
    p, g = jnp.ones((2, 3)), jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    for numbers, axis in {None: 0, Numbers(1, 0): 1}.items():
        opt = eqopt.ScaleBySGDP(delta=ALWAYS, weight_dimension_numbers=numbers)
        updates, _ = opt.update(g, opt.init(p), p)
        np.testing.assert_allclose(updates, g - g.mean(axis, keepdims=True), atol=1e-6)
    opt = eqopt.ScaleBySGDP(delta=ALWAYS, weight_dimension_numbers=lambda p: [None])
    np.testing.assert_array_equal(opt.update([g], opt.init([p]), [p])[0], [g])


def test_projection_of_complex_weights():
    """Only the real part of the inner product is removed: a change of phase stays."""
    p = jnp.array([[1.0 + 0j, 1j]])
    opt = eqopt.ScaleBySGDP(
        delta=ALWAYS, weight_dimension_numbers=Numbers(-1, -2), eps=0.0
    )
    g = (2 + 3j) * p
    updates, _ = opt.update(g, opt.init(p), p)
    np.testing.assert_allclose(updates, 3j * p, atol=1e-6)
