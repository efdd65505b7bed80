"""The laws of all projections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


pytestmark = pytest.mark.slow


def _all(fn, points):
    return np.asarray(jax.jit(jax.vmap(fn))(points), float)


def test_lands_in_the_set(case, points):
    for x, p in zip(points, _all(case.ours, points), strict=True):
        assert case.distance(p) <= 2e-6 * (1 + np.abs(x).max())


def test_is_idempotent(case, points):
    once = _all(case.ours, points)
    twice = _all(case.ours, jnp.asarray(once, jnp.float32))
    sizes = 1 + np.abs(np.asarray(points)).max(1, keepdims=True)
    np.testing.assert_allclose(twice / sizes, once / sizes, rtol=2e-6, atol=2e-6)


def test_is_the_nearest_point(case, points):
    """<x - P(x), y - P(x)> <= 0 for y of the set, if it is convex."""
    projected = _all(case.ours, points)
    for x, p in zip(np.asarray(points, float), projected, strict=True):
        for y in projected:
            slack = 1e-5 * (1 + np.abs(x).max() + np.abs(y).max()) ** 2
            if case.is_convex:
                assert (x - p) @ (y - p) <= slack
            assert np.sum((x - p) ** 2) <= np.sum((x - y) ** 2) + slack


def test_derivatives_are_those_of_optax(case, points, standard_promotion):
    weights = jnp.arange(1.0, 6.0)
    ours, theirs = (
        _all(jax.grad(lambda x, fn=fn: jnp.sum(fn(x) * weights)), points[:20])
        for fn in (case.ours, case.theirs)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_derivatives_are_finite(case, points):
    total = lambda x: jnp.sum(case.ours(x) ** 2)
    for derivative in (jax.grad(total), jax.jacfwd(total)):
        assert np.isfinite(_all(derivative, points)).all()


def test_half_precision_is_rounded_once(case, points):
    dtype = jnp.bfloat16
    for x in points[::3].astype(dtype):
        out = case.ours(x)
        assert out.dtype == dtype
        wide = case.ours(x.astype(jnp.float32)).astype(dtype)
        np.testing.assert_array_equal(out.astype(float), wide.astype(float))


def test_a_tree_is_one_vector(tree_case, points):
    """Split among leaves of several shapes, the numbers land where they did."""
    case = tree_case
    for x in points[::2]:
        tree = {"w": x[:4].reshape(2, 2), "b": [x[4]], "n": 3, "i": jnp.arange(2)}
        out = case.ours(tree)
        flat = jnp.concatenate([out["w"].reshape(-1), out["b"][0][None]])
        np.testing.assert_allclose(flat, case.ours(x), rtol=1e-5, atol=1e-6)
        assert out["n"] == 3
        assert out["i"] is tree["i"]


def test_nan_does_not_vanish(case):
    x = jnp.array([1.0, jnp.nan, 3.0, 0.0, -1.0])
    assert jnp.isnan(case.ours(x)[1])


def test_nan_does_not_vanish_in_a_large_array(tree_case):
    """XLA on a CPU loses it there in a maximum, as of the simplex."""
    case = tree_case
    x = jnp.tile(jnp.array([1.0, 2.0, 3.0, 0.0, -1.0]), 2048)
    small, large = (case.ours(x.at[1].set(jnp.nan)) for x in (x[:5], x))
    assert jnp.isnan(large[1])
    assert jnp.isnan(large).all() == jnp.isnan(small).all()
