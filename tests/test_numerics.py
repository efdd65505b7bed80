"""Norms with derivatives, counters that stop, and what Optax makes of the same."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt
from eqopt.numerics import (
    at_least_float32,
    max_or_nan,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
    wide_dtype,
)


SLOW = pytest.mark.slow
X = jr.normal(jr.key(0), (3, 4))
NORMS = [
    {},
    {"ord": 1},
    {"ord": "fro"},
    {"ord": "nuc"},
    {"axis": -1, "ord": 1},
    {"axis": 1, "keepdims": True, "ord": jnp.inf},
    {"axis": (0, 1), "keepdims": True},
]


def with_slopes(fns, x, floor):
    """The values of functions of both, and their derivatives by the first."""
    total = lambda x, fn: jnp.sum(jnp.sin(fn(x, floor)))
    run = jax.jit(lambda x: [(fn(x, floor), jax.grad(total)(x, fn)) for fn in fns])
    return run(x)


@pytest.mark.parametrize("arguments", NORMS, ids=str)
@pytest.mark.costly
def test_norms_are_those_of_optax(arguments, standard_promotion):
    fns = [functools.partial(f, **arguments) for f in (safe_norm, optax.safe_norm)]
    for min_norm in (0.0, 1.8):
        ours, theirs = with_slopes(fns, X, min_norm)
        assert ours[0].shape == theirs[0].shape
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", NORMS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex64", marks=SLOW)])
@pytest.mark.costly
def test_norms_have_derivatives_at_zero(arguments, dtype):
    [(value, slope)] = with_slopes(
        [functools.partial(safe_norm, **arguments)], jnp.zeros((3, 4), dtype), 0.0
    )
    assert not value.any()
    assert not slope.any()


@pytest.mark.parametrize("min_rms", [0.5, 5.0])
@pytest.mark.slow
def test_root_mean_squares_are_those_of_optax(min_rms):
    fns = safe_root_mean_squares, optax.safe_root_mean_squares
    for x in (X, jax.lax.complex(X, X[::-1])):
        ours, theirs = with_slopes(fns, x, min_rms)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-6)
    [(value, slope)] = with_slopes(fns[:1], jnp.zeros(3), 0.0)
    assert value == 0
    assert not slope.any()


@pytest.mark.parametrize("fn", [safe_norm, safe_root_mean_squares])
def test_precision_and_the_edges(fn):
    for dtype in (jnp.float16, jnp.bfloat16):
        assert fn(jnp.full(4, 3e4, dtype), 1).dtype == jnp.float32
        assert jnp.isfinite(fn(jnp.full(4, 3e4, dtype), 1))
    assert fn(jnp.ones(1, jnp.complex64), jnp.asarray(0.5)) == 1
    assert jnp.isnan(fn(jnp.array([1, jnp.nan]), 5.0))
    assert fn(jnp.zeros(0), 0.5) == 0.5
    mapped = jax.jit(jax.vmap(fn, (0, None)))(X, 0.1)
    np.testing.assert_allclose(mapped, [fn(x, 0.1) for x in X], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("ord", [jnp.inf, -jnp.inf, 1])
@pytest.mark.costly
def test_norms_of_large_arrays_keep_a_nan(ord, dtype):
    """XLA's maxima and minima of large arrays ignore it on a CPU."""
    x = jnp.ones((1000, 100), dtype).at[3, 5].set(jnp.nan).at[3, 6].set(jnp.inf)
    norms = lambda axis: jax.jit(lambda x: safe_norm(x, 0.5, ord, axis))(x)
    assert jnp.isnan(norms(None))
    for axis, place in ((0, 5), (1, 3)):
        assert jnp.flatnonzero(jnp.isnan(norms(axis))).tolist() == [place]


@pytest.mark.parametrize("axis", [0, -1])
def test_the_largest_or_nan(axis):
    """Also of a large array, of whose maximum XLA on a CPU loses a NaN."""
    x = jnp.abs(jr.normal(jr.key(1), (512, 512)))
    most = 3.0
    for keepdims in (False, True):
        got = jax.jit(lambda x, k=keepdims: max_or_nan(x, axis, k, most=most))(x)
        expected = np.minimum(np.max(np.asarray(x), axis, keepdims=keepdims), most)
        np.testing.assert_array_equal(got, expected)
    bad = x.at[2, 3].set(jnp.nan).at[4, 5].set(jnp.inf)
    got = jax.jit(lambda x: max_or_nan(x, axis))(bad)
    np.testing.assert_array_equal(got, np.max(np.asarray(bad), axis))
    slope = jax.grad(lambda x: jnp.sum(max_or_nan(x, axis)))(x)
    np.testing.assert_array_equal(slope, x == np.max(x, axis, keepdims=True))


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_counts_saturate(dtype):
    last = jnp.asarray(jnp.iinfo(dtype).max, dtype)
    for count in (last, last - 1, jnp.asarray(3, dtype)):
        ours = jax.jit(safe_increment)(count)
        theirs = optax.safe_increment(count)
        assert int(ours) == int(theirs) == min(int(count) + 1, int(last))
        assert ours.dtype == dtype


def test_float_counts_are_refused():
    """They stop counting at 2^24 without saying so."""
    with pytest.raises(TypeError, match="count"):
        safe_increment(jnp.asarray(1.0))
    assert optax.safe_increment(jnp.asarray(2.0**24)) == 2.0**24


def test_incremental_update_in_mixed_precision():
    """A float32 average of bfloat16 parameters is computed and kept in float32."""
    new, old = {"x": jnp.ones(2, jnp.bfloat16)}, {"x": jnp.zeros(2)}
    for _ in range(3):
        old = eqopt.incremental_update(new, old, 2.0**-10)
    assert old["x"].dtype == jnp.float32
    np.testing.assert_allclose(old["x"], 1 - (1 - 2.0**-10) ** 3, rtol=1e-6)


def test_incremental_update_of_a_part():
    new, old = {"x": None, "y": jnp.ones(2)}, {"x": jnp.zeros(2), "y": jnp.zeros(2)}
    moved = eqopt.incremental_update(new, old, 0.5)
    assert moved["x"] is old["x"]
    assert moved["y"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64", "int8", "bool"])
def test_at_least_float32(dtype):
    wide = "complex64" if dtype == "complex64" else "float32"
    assert wide_dtype(dtype) == wide_dtype("bfloat16", dtype) == wide
    assert at_least_float32(jnp.ones(2, dtype)).dtype == wide
    assert wide_dtype() == "float32"


def test_at_least_float32_keeps_float64(x64):
    with x64():
        assert at_least_float32(jnp.ones(2, "float64")).dtype == "float64"
        assert wide_dtype("float64", "complex64") == "complex128"
