"""`reshape_batch_axis` against Optax."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt.microbatching import reshape_batch_axis


@pytest.mark.parametrize(
    ("size", "axis"), [(1, 0), (2, 0), (6, 0), (2, 1), (2, 2), (2, -1), (2, -3)]
)
def test_parity_with_optax(size, axis):
    x = np.arange(6**3).reshape(6, 6, 6)
    actual = reshape_batch_axis({"x": x, "y": jnp.asarray(x)}, size, axis)
    expected = optax.microbatching.reshape_batch_axis(jnp.asarray(x), size, axis % 3)
    np.testing.assert_array_equal(actual["x"], expected)
    np.testing.assert_array_equal(actual["y"], expected)


def test_columns():
    assert reshape_batch_axis(jnp.arange(6), 2).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert reshape_batch_axis(jnp.ones((0, 3)), 2).shape == (0, 2, 3)


def test_other_leaves_are_left_alone():
    modules = eqx.nn.Lambda(jnp.tanh), eqx.nn.PReLU(jnp.ones(4))
    out = reshape_batch_axis((modules, None, "name", 3), 2)
    assert out[0][0].fn is jnp.tanh
    assert out[0][1].negative_slope.shape == (2, 2)
    assert out[1:] == (None, "name", 3)
