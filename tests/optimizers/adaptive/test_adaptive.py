"""Adaptive gradients, beyond the laws and the comparison with Optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


MATRIX = eqopt.MatrixDimensionNumbers(-1, -2)
KERNEL = eqopt.MatrixDimensionNumbers((-3, -2, -1), -4)


def gradients(shape, steps=5):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(steps)]


def run(opt, grads_in_turn):
    """All updates, and the last state."""
    state, update, seen = opt.init(grads_in_turn[0]), eqx.filter_jit(opt.update), []
    for grads in grads_in_turn:
        updates, state = update(grads, state)
        seen.append(updates)
    return jnp.stack(seen), state


@pytest.mark.slow
def test_sm3_of_stacked_layers_is_that_of_each_layer():
    stack = gradients((3, 4, 5))
    opt = eqopt.SM3(0.1, weight_dimension_numbers=MATRIX)
    together, state = run(opt, stack)
    assert [x.shape for x in state[0].nu] == [(3, 1, 5), (3, 4, 1)]
    for layer in range(3):
        alone, _ = run(eqopt.SM3(0.1), [g[layer] for g in stack])
        np.testing.assert_allclose(together[:, layer], alone, 1e-6)
    covering_the_stack, _ = run(eqopt.SM3(0.1), stack)
    assert not np.allclose(together, covering_the_stack, 1e-2)


def test_sm3_of_a_kernel_is_that_of_its_matrix():
    kernels = gradients((4, 2, 3, 3))
    ours, state = run(eqopt.SM3(0.1, weight_dimension_numbers=KERNEL), kernels)
    assert [x.shape for x in state[0].nu] == [(1, 2, 3, 3), (4, 1, 1, 1)]
    matrices, _ = run(eqopt.SM3(0.1), [g.reshape(4, -1) for g in kernels])
    np.testing.assert_allclose(ours.reshape(matrices.shape), matrices, 1e-6)


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
