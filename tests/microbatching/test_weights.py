"""Rows that count differently: exact means, and rows that do not count at all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    Accumulator,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
)


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
RUNNING_MEAN, CONCAT = AccumulationType.RUNNING_MEAN, AccumulationType.CONCAT
KINDS = {kind.name: kind for kind in AccumulationType}

X = np.array([3.0, -1.0, 4.0, 1.0, 5.0], np.float32)
W = np.array([1.0, 2.0, 0.0, 0.5, 3.0], np.float32)


@eqx.filter_jit
def of_rows(x, w, size, k=None):
    return micro_vmap(
        lambda x: dict.fromkeys(KINDS, x),
        microbatch_size=size,
        accumulator=KINDS,
        weights=w,
        num_real_microbatches=k,
    )(x)


def weighted_mean(x, w):
    return jnp.sum(x * w) / jnp.sum(w)


@eqx.filter_jit
def of_batches(x, w, size, k=None):
    def fun(x, w):
        mean = weighted_mean(x, w)
        return {"SUM": jnp.sum(x), "MEAN": mean, "RUNNING_MEAN": mean, "CONCAT": x}

    arguments = {"weights": w, "num_real_microbatches": k}
    return microbatch(fun, (0, 1), size, KINDS, **arguments)(x, w)


def assert_all_close(actual, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [None, 1, 2, 5])
@pytest.mark.costly
def test_means(size):
    mean = np.sum(X * W) / np.sum(W)
    for w in (W, jnp.asarray(W)):
        means = {"MEAN": mean, "RUNNING_MEAN": mean, "CONCAT": X}
        assert_all_close(of_rows(X, w, size), SUM=np.sum(X * W), **means)
        # One row of weight zero is one microbatch if the size is 1: its mean is NaN.
        assert_all_close(of_batches(X, w, size), SUM=np.sum(X), **means)


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.slow
def test_num_real_microbatches(k):
    done = np.isin(np.arange(5), [[], [0, 2], [0, 2, 1, 3], [0, 2, 1, 3, 4]][k])
    total, weight = np.sum((X * W)[done]), np.sum(W[done])
    means = {"MEAN": total / np.sum(W), "RUNNING_MEAN": total / (weight or 1)}
    for executed in (k, jnp.array(k)):
        assert_all_close(of_rows(X, W, 2, executed), SUM=total, **means)
        assert_all_close(of_batches(X, W, 2, executed), SUM=np.sum(X[done]), **means)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.slow
def test_what_has_no_weight_may_be_nan(bad):
    x = np.where(W == 0, bad, X).astype(np.float32)
    mean = np.sum(X * W) / np.sum(W)
    for size in (None, 2):
        out = of_rows(x, W, size)
        assert_all_close(out, SUM=np.sum(X * W), MEAN=mean, RUNNING_MEAN=mean)
    # Microbatches of the rows 0 and 2, 1 and 3, and 4.
    w = np.array([0, 1, 0, 3, 0], np.float32)
    x = np.array([bad, 1, bad, 5, bad], np.float32)
    for executed in (None, 3, jnp.array(3)):
        assert_all_close(of_batches(x, w, 2, executed), MEAN=4, RUNNING_MEAN=4)


def test_nothing_counts():
    w = np.zeros(5, np.float32)
    for fun in (of_rows, of_batches):
        for size in (None, 2):
            assert_all_close(fun(X * np.nan, w, size), MEAN=0, RUNNING_MEAN=0)
    assert_all_close(of_rows(X * np.nan, w, 2), SUM=0)


def test_dtypes_of_values():
    # In 16 bits, 1 + 1 + ... stops growing at 256 (bfloat16).
    x, w = jnp.ones(2304, jnp.bfloat16), jnp.full(2304, 0.5)
    out = of_rows(x, w, 6)
    assert out["SUM"].dtype == out["MEAN"].dtype == jnp.bfloat16
    assert_all_close(jax.tree.map(jnp.float32, out), SUM=1152, MEAN=1, RUNNING_MEAN=1)
    out = of_rows(jnp.arange(4), jnp.array([0.5, 0, 0, 1.5]), 2)
    assert out["SUM"].dtype == out["MEAN"].dtype == jnp.float32
    assert out["CONCAT"].dtype == jnp.int32
    assert_all_close(out, SUM=4.5, MEAN=2.25)
    out = of_rows(jnp.array([1 + 2j, 3j]), jnp.array([1.0, 3.0]), 1)
    assert_all_close(out, SUM=1 + 11j, MEAN=(1 + 11j) / 4)


@pytest.mark.slow
def test_double_precision_neither_leaks_nor_is_lost(x64):
    with x64():
        for dtype in (jnp.float32, jnp.float64):
            x, w = jnp.full(5, 1 / 3, dtype), jnp.asarray(W, dtype) / 3
            for out in (of_rows(x, w, 2), of_batches(x, w, 2)):
                assert out["MEAN"].dtype == out["RUNNING_MEAN"].dtype == dtype
                tol = 4 * float(jnp.finfo(dtype).eps)
                np.testing.assert_allclose(out["MEAN"], x[0], rtol=tol)


def test_custom_accumulators_do_not_use_them():
    total = Accumulator(
        init=lambda like: jnp.zeros(like.shape),
        update=lambda carry, value, index: carry + value,
        finalize=lambda carry: carry,
        aggregate=lambda values: jnp.sum(values, axis=0),
    )
    out = micro_vmap(lambda x: x, microbatch_size=2, accumulator=total, weights=W)(X)
    assert out == np.sum(X)


def test_padding_of_nan_does_not_reach_the_gradient():
    x = jnp.array([[1.0], [jnp.nan], [3.0], [jnp.inf]])
    w = jnp.array([1, 0, 1, 0])

    def loss(model, x):
        return jnp.sum(model * x) ** 2

    grads, _ = micro_grad(loss, microbatch_size=2, accumulator=MEAN, weights=w)(1.0, x)
    assert grads is None  # of a Python float
    grads, _ = micro_grad(loss, microbatch_size=2, accumulator=MEAN, weights=w)(
        jnp.float32(1), x
    )
    assert grads == (2 * 1 + 2 * 9) / 2
    # Microbatches of the rows 0 and 2, 1 and 3: the second one is all padding.
    value, grads = micro_value_and_grad(loss, microbatch_size=2, weights=w)(
        jnp.float32(1), x
    )
    assert (value, grads) == (16, 32)
