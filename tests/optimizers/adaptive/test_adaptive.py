"""Adaptive gradients, beyond the laws and the comparison with Optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqopt


def test_sm3_takes_little_memory():
    model = eqx.nn.MLP(50, 50, 50, 1, key=jax.random.key(0))
    state = eqopt.SM3(0.1, momentum=None).init(model)
    weights = 2 * (50 + 50) + 2 * 50  # rows, columns and biases
    assert sum(x.size for x in jax.tree.leaves(state)) == weights + 2
    assert state[0].mu is None
    weight = state[0].nu.layers[0].weight
    assert [x.shape for x in weight] == [(50, 1), (1, 50)]


def test_sm3_of_arrays_without_elements_or_axes():
    params = [jnp.zeros((0, 3)), jnp.ones(()), jnp.ones((1, 1))]
    opt = eqopt.SM3(0.1, None)
    updates, state = jax.jit(opt.update)(params, opt.init(params))
    assert [[x.shape for x in nu] for nu in state[0].nu] == [
        [(0, 1), (1, 3)],
        [()],
        [(1, 1), (1, 1)],
    ]
    np.testing.assert_allclose(jnp.stack([u.sum() for u in updates]), [0, -0.1, -0.1])
