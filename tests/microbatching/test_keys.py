"""One key for all of a batch: rows and microbatches draw different numbers from it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
)


pytestmark = pytest.mark.slow


CONCAT = AccumulationType.CONCAT
KEYS = [jr.key(0), jr.PRNGKey(0)]


def draw(x, *, key):
    return x + jr.uniform(key)


@pytest.mark.parametrize("key", KEYS, ids=["typed", "raw"])
def test_a_key_for_each_example_whatever_the_microbatch_size(key):
    x = jnp.arange(5.0)
    expected = x + jax.vmap(jr.uniform)(jr.split(key, 5))
    for size in (None, 2, 5):
        vmapped = eqx.filter_jit(micro_vmap(draw, microbatch_size=size))
        np.testing.assert_array_equal(vmapped(x, key=key), expected)
        # One key per example is mapped, as it is.
        np.testing.assert_array_equal(vmapped(x, key=jr.split(key, 5)), expected)

        @eqx.filter_jit
        def grads(x, key, size=size):
            fun = lambda w, x, *, key: draw(w * x, key=key)
            arguments = {"microbatch_size": size, "keep_batch_dim": False}
            return micro_grad(fun, **arguments)(jnp.float32(1), x, key=key)

        np.testing.assert_array_equal(grads(x, key)[1].values, expected)


@pytest.mark.parametrize("key", KEYS, ids=["typed", "raw"])
def test_a_key_for_each_microbatch(key):
    def fun(x, key):
        return jnp.broadcast_to(jr.uniform(key), x.shape)

    numbers = [jr.uniform(jr.fold_in(key, i)).item() for i in range(3)]
    for num_real in (None, jnp.array(3)):
        micro = microbatch(fun, 0, 2, CONCAT, num_real_microbatches=num_real)
        out = eqx.filter_jit(micro)(jnp.zeros(5), key=key)
        # Two microbatches of two rows, and one of the row that remains.
        expected = [numbers[i] for i in (0, 1, 0, 1, 2)]
        np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("key", KEYS, ids=["typed", "raw"])
def test_a_key_for_each_row_if_it_is_named_a_batch(key):
    x = jnp.arange(5.0)

    def fun(x, *, key):
        return jax.vmap(lambda x, key: draw(x, key=key))(x, key)

    def loss(w, x, *, key):
        return jnp.mean(fun(w * x, key=key))

    expected = x + jax.vmap(jr.uniform)(jr.split(key, 5))
    for size in (2, 5):
        # An axis that a key does not have is not for the keys made of it.
        micro = microbatch(fun, 0, size, CONCAT, argnames="key", in_axes=-1)
        out = eqx.filter_jit(micro)(x, key=key)
        np.testing.assert_array_equal(out, expected)
        value_and_grad = micro_value_and_grad(
            loss, batch_argnames="key", microbatch_size=size
        )
        value, _ = eqx.filter_jit(value_and_grad)(jnp.float32(1), x, key=key)
        np.testing.assert_allclose(value, jnp.mean(expected), rtol=1e-6)


def test_arguments_that_are_not_a_single_key_are_left_alone():
    x, keys = jnp.zeros(4), jr.split(jr.key(0), 3)

    def fun(x, *, key):
        return x if key is None else (x, key)

    np.testing.assert_array_equal(microbatch(fun, 0, 2, CONCAT)(x, key=None), x)
    np.testing.assert_array_equal(micro_vmap(fun)(x, key=None), x)
    _, out = microbatch(fun, 0, 4, CONCAT)(x, key=keys)
    np.testing.assert_array_equal(jr.key_data(out), jr.key_data(keys))
    # Two rows of numbers, which only resemble a raw key.
    numbers = jnp.array([1, 2], jnp.int32)
    _, out = micro_vmap(fun)(jnp.zeros(2), key=numbers)
    np.testing.assert_array_equal(out, numbers)
