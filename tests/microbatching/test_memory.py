"""Temporary memory does not grow with the batch (exact, from the compiler)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
    per_example_grad_norms,
)


pytestmark = pytest.mark.slow


SIZE = 32
MEAN, CONCAT = AccumulationType.MEAN, AccumulationType.CONCAT


def parameters(model):
    return eqx.filter(model, eqx.is_inexact_array)


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
    "columns": (microbatch(value_and_grad_of_columns, 1, SIZE, MEAN, in_axes=-1), -1),
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
    "clipped_grad": (clipped_grad(loss, 1.0, microbatch_size=SIZE), 0),
    "per_example_grad_norms": (per_example_grad_norms(loss, microbatch_size=SIZE), 0),
}


def temporary(name, rows):
    fun, axis = SUBJECTS[name]
    model = eqx.nn.MLP(64, 8, 32, 1, key=jr.key(0))
    return temporary_of(fun, model, jnp.moveaxis(jnp.zeros((rows, 64)), 0, axis))


def temporary_of(fun, model, x):
    jitted: Any = eqx.filter_jit(fun)
    compiled = jitted.lower(model, x).compile().compiled
    return compiled.memory_analysis().temp_size_in_bytes


RAGGED = [
    *("microbatch", "columns", "traced", "micro_grad", "micro_value_and_grad"),
    "clipped_grad",
]


@pytest.mark.parametrize(
    ("name", "rest"), [*((x, 0) for x in SUBJECTS), *((x, 5) for x in RAGGED)]
)
def test_flat_in_the_batch_size(name, rest):
    small, large = (temporary(name, n * SIZE + rest) for n in (2, 128))
    # In a ragged batch, these join values of examples: a few bytes per row.
    is_joined = rest and name in ("micro_grad", "clipped_grad")
    assert large <= 1.1 * small + 8 * 128 * SIZE * is_joined


def test_gradients_of_examples_that_do_not_exist():
    model, x = eqx.nn.MLP(64, 8, 256, 2, key=jr.key(0)), jnp.zeros((64, 64))
    ghost, whole = (
        temporary_of(clipped_grad(loss, 1.0, method=method), model, x)
        for method in ("auto", "per_example")
    )
    # 64 examples times 330 kB of gradients are 22 MB.
    assert whole > 64 * sum(p.nbytes for p in jax.tree.leaves(parameters(model)))
    assert ghost < whole / 30


def test_checkpoint_stays():
    """Each layer is computed again, with what it keeps, and nothing is kept outside."""
    layer = jax.checkpoint(lambda w, x: jnp.sin(jnp.cos(jnp.sin(x @ w))))
    loss = lambda w, x: jnp.sum(layer(w, layer(w, x)))
    for method in ("ghost", "per_example"):
        grad_fn = clipped_grad(loss, 1.0, keep_batch_dim=False, method=method)
        jaxpr = jax.make_jaxpr(grad_fn)(jnp.ones((3, 3)), jnp.ones((2, 3)))
        assert str(jaxpr).count("differentiated=True") == 2
