"""Temporary memory does not grow with the batch (exact, from the compiler)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

from eqopt.microbatching import (
    AccumulationType,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
)


SIZE = 32
MEAN, CONCAT = AccumulationType.MEAN, AccumulationType.CONCAT


def loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


def loss_of_columns(model, x):
    return loss(model, jnp.moveaxis(x, -1, 0))


def real(x):
    return jnp.sum(x[:1] > 0, dtype=jnp.int32).ravel()[0]


value_and_grad = eqx.filter_value_and_grad(loss)
value_and_grad_of_columns = eqx.filter_value_and_grad(loss_of_columns)

# name: function of a model and a batch, batch axis
SUBJECTS = {
    "microbatch": (microbatch(value_and_grad, 1, SIZE, MEAN), 0),
    "columns": (
        microbatch(value_and_grad_of_columns, 1, SIZE, MEAN, in_axes=-1),
        -1,
    ),
    "concat": (microbatch(lambda m, x: jax.vmap(m)(x), 1, SIZE, CONCAT), 0),
    "traced": (
        lambda m, x: microbatch(
            value_and_grad, 1, SIZE, MEAN, num_real_microbatches=real(x)
        )(m, x),
        0,
    ),
    "micro_vmap": (micro_vmap(lambda m, x: m(x), (None, 0), microbatch_size=SIZE), 0),
    "micro_value_and_grad": (micro_value_and_grad(loss, microbatch_size=SIZE), 0),
    "weighted": (
        lambda m, x: micro_value_and_grad(
            loss, microbatch_size=SIZE, weights=jnp.abs(x[:, 0])
        )(m, x),
        0,
    ),
    "weighted micro_grad": (
        lambda m, x: micro_grad(
            loss, microbatch_size=SIZE, accumulator=MEAN, weights=jnp.abs(x[:, 0])
        )(m, x),
        0,
    ),
    "micro_grad": (micro_grad(loss, microbatch_size=SIZE, accumulator=MEAN), 0),
}


def temporary(name, rows):
    fun, axis = SUBJECTS[name]
    model = eqx.nn.MLP(64, 8, 32, 1, key=jr.key(0))
    x = jnp.moveaxis(jnp.zeros((rows, 64)), 0, axis)
    jitted: Any = eqx.filter_jit(fun)
    compiled = jitted.lower(model, x).compile().compiled
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", SUBJECTS)
def test_flat_in_the_batch_size(name):
    small, large = temporary(name, 2 * SIZE), temporary(name, 128 * SIZE)
    assert large <= 1.1 * small


@pytest.mark.parametrize(
    "name",
    ["microbatch", "columns", "traced", "micro_grad", "micro_value_and_grad"],
)
def test_flat_also_if_ragged(name):
    small, large = temporary(name, 2 * SIZE + 5), temporary(name, 128 * SIZE + 5)
    # `micro_grad` joins its per-example values: a few bytes per row.
    assert large <= 1.1 * small + 8 * 128 * SIZE * (name == "micro_grad")
