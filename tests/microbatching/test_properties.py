"""For any batch and any way to divide it, the result is as for the whole batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from eqopt.microbatching import (
    AccumulationType,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
)

from ..interpreter import interpreted
from .subjects import assert_close


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
RUNNING_MEAN, CONCAT = AccumulationType.RUNNING_MEAN, AccumulationType.CONCAT

# Small integers, of which weighted sums are exact in any order, also in bfloat16.
numbers = st.lists(st.integers(-2, 2), min_size=14, max_size=14)
weights = st.lists(st.sampled_from([0, 1, 2]), min_size=7, max_size=7)
sizes = st.none() | st.integers(1, 7)
# Few shapes: examples of the same share what is compiled.
batches = st.sampled_from([1, 4, 5, 7])
trees = st.sampled_from(
    [lambda x: x, lambda x: (x, {"a": x[..., 0], "n": None}), lambda x: [x, "name", 1]]
)


def batch_of(values, rows, dtype):
    return jnp.asarray(np.reshape(values, (7, 2))[:rows], dtype)


def tolerance(dtype):
    return 1e-5 if dtype == jnp.float32 else 2e-2


@interpreted
def sums_and_rows(x, size, axis, tree):
    def fun(x):
        x = jnp.moveaxis(x, axis, 0)
        total = jnp.sum(x, 0, dtype=x.dtype)
        return {"sum": tree(total), "rows": x * x}

    kinds = {"sum": SUM, "rows": CONCAT}
    return microbatch(fun, 0, size, kinds, in_axes=axis)(x), fun(x)


@interpreted
def sums_and_rows_by_row(x, size, axis, tree):
    def fun(x):
        return tree(x), x * x

    vmapped = micro_vmap(fun, axis, microbatch_size=size, accumulator=(SUM, CONCAT))
    total, rows = eqx.filter_vmap(fun, in_axes=axis)(x)
    total = jax.tree.map(lambda x: jnp.sum(x, 0) if eqx.is_array(x) else x, total)
    return vmapped(x), (total, rows)


def check_sums(values, rows, size, axis, dtype, tree):
    x = jnp.moveaxis(batch_of(values, rows, dtype), 0, axis)
    size = None if size is None else min(size, rows)
    for function in (sums_and_rows, sums_and_rows_by_row):
        assert_close(*function(x, size, axis, tree), tol=0)


DTYPES = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int32])
SUMS = {
    "values": numbers,
    "rows": batches,
    "size": sizes,
    "axis": st.integers(-2, 1),
    "dtype": DTYPES,
    "tree": trees,
}
test_sums = settings(max_examples=4, deadline=None)(given(**SUMS)(check_sums))
test_sums_of_many = pytest.mark.slow(
    settings(max_examples=60, deadline=None)(given(**SUMS)(check_sums))
)


def loss(model, x):
    return jnp.sum(jnp.tanh(model["w"] * x + model["b"]) ** 2)


def mean_loss(model, x, w):
    losses = jax.vmap(loss, (None, 0))(model, x)
    w = w.astype(losses.dtype)
    return jnp.sum(losses * w) / jnp.sum(w)


@interpreted
def weighted_means(model, x, w, size):
    """Computed by all functions for microbatches, and without microbatches."""
    by_row = micro_vmap(
        loss, (None, 0), microbatch_size=size, accumulator=MEAN, weights=w
    )(model, x)
    grads, aux = micro_grad(
        loss, keep_batch_dim=False, microbatch_size=size, accumulator=MEAN, weights=w
    )(model, x)
    running = microbatch(mean_loss, (1, 2), size, RUNNING_MEAN, weights=w)(model, x, w)
    both = micro_value_and_grad(
        mean_loss, batch_argnums=(1, 2), microbatch_size=size, weights=w
    )(model, x, w)
    expected = jax.value_and_grad(mean_loss)(model, x, w)
    return [(by_row, grads), (running, grads), both], expected, aux.values


def check_means(values, weights, rows, size, dtype):
    x = batch_of(values, rows, dtype)
    w = jnp.asarray(weights[:rows], jnp.float32)
    model = {"w": jnp.asarray([0.5, -1.0], dtype), "b": jnp.asarray([0, 0.25], dtype)}
    size = None if size is None else min(size, rows)
    ways, expected, losses = weighted_means(model, x, w, size)
    if not any(weights[:rows]):
        expected = jax.tree.map(jnp.zeros_like, expected)
    for way in ways:
        assert_close(way, expected, tolerance(dtype))
    assert losses.shape == (rows,)


MEANS = {
    "values": numbers,
    "weights": weights,
    "rows": batches,
    "size": sizes,
    "dtype": st.sampled_from([jnp.float32, jnp.bfloat16]),
}
test_means = settings(max_examples=4, deadline=None)(given(**MEANS)(check_means))
test_means_of_many = pytest.mark.slow(
    settings(max_examples=60, deadline=None)(given(**MEANS)(check_means))
)
