"""Aggregators against numpy, in any precision and any cutting of a sample into calls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import aggregating


def sample(key, n, shape=(3, 2), mean=0.0):
    return mean + jr.normal(jr.key(key), (n, *shape))


def in_parts(x, sizes):
    return np.split(np.asarray(x), np.cumsum(sizes)[:-1])


def run(aggregator, calls, params):
    """Everything that the calls give, one after the other."""
    state, out = aggregator.init(params), []
    for updates in calls:
        aggregated, found, state = aggregator.aggregate(jnp.asarray(updates), state)
        out.append((aggregated, found, state))
    return out


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1, 5, 2), (1,) * 8])
@pytest.mark.costly
def test_mean_and_variance(sizes):
    """They are as for the whole sample, for any division of it, in every cycle."""
    aggregator = aggregating.PerElementMeanAndSumSqDiffGrads(0, len(sizes))
    cycles = [sample(seed, sum(sizes), mean=seed) for seed in range(3)]
    calls = [part for x in cycles for part in in_parts(x, sizes)]
    out = run(aggregator, calls, jnp.zeros((3, 2)))
    last = out[len(sizes) - 1 :: len(sizes)]
    for x, (mean, found, _) in zip(cycles, last, strict=True):
        x = np.asarray(x, np.float64)
        np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5, atol=1e-6)
        variance = found["sum_sq_diff_grads"] / (int(found["sample_size"]) - 1)
        np.testing.assert_allclose(variance, x.var(0, ddof=1), rtol=1e-5)
        assert found["sample_size"] == sum(sizes)


@pytest.mark.parametrize("k", [1, 10])
def test_a_small_variance_with_a_large_mean(k):
    """The mean of the squares less the square of the mean has no digit here."""
    x = 1000 + 0.01 * np.asarray(sample(0, 40), np.float64)
    x = x.astype(np.float32)
    aggregator = aggregating.PerElementMeanAndSumSqDiffGrads(0, k)
    _, found, _ = run(aggregator, in_parts(x, [40 // k] * k), jnp.zeros((3, 2)))[-1]
    expected = 40 * x.astype(np.float64).var(0)
    np.testing.assert_allclose(found["sum_sq_diff_grads"], expected, rtol=2e-2)
    naive = np.sum(x * x, 0) - 40 * x.mean(0) ** 2
    assert np.abs(naive / expected - 1).max() > 1


@pytest.mark.parametrize(
    ("dtype", "digits"), [(jnp.bfloat16, 2e-2), (jnp.float16, 2e-3)]
)
@pytest.mark.parametrize("k", [1, 64])
@pytest.mark.costly
def test_half_precision(dtype, digits, k):
    """Gathered in float32: in bfloat16, 1 + 1 / 256 is 1."""
    x = sample(0, 256, (5,), mean=3.0).astype(dtype)
    exact = np.asarray(x.astype(jnp.float32), np.float64)
    params = jnp.zeros(5, dtype)
    aggregator = aggregating.PerElementMeanAndSumSqDiffGrads(0, k)
    parts = jnp.split(x, k)
    mean, found, _ = run(aggregator, parts, params)[-1]
    assert mean.dtype == found["sum_sq_diff_grads"].dtype == jnp.float32
    np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-5)
    variance = found["sum_sq_diff_grads"] / 255
    np.testing.assert_allclose(variance, exact.var(0, ddof=1), rtol=1e-4)
    state, update = aggregator.init(params), params
    for part in parts:
        update, state = aggregator.update(part, state, params)
    assert update.dtype == dtype
    np.testing.assert_allclose(update.astype(jnp.float32), exact.mean(0), rtol=digits)


@pytest.mark.parametrize("k", [1, 2])
def test_complex_variance_is_real(k):
    x = np.asarray(jr.normal(jr.key(0), (8, 3, 2), jnp.complex64))
    aggregator = aggregating.PerElementMeanAndSumSqDiffGrads(0, k)
    out = run(aggregator, in_parts(x, [8 // k] * k), jnp.zeros((3, 2), jnp.complex64))
    mean, found, _ = out[-1]
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5)
    assert found["sum_sq_diff_grads"].dtype == jnp.float32
    np.testing.assert_allclose(found["sum_sq_diff_grads"], 8 * x.var(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("axes", "shape"),
    [(0, (4, 3, 2)), (-1, (3, 2, 4)), ((0, 1), (2, 2, 3, 2)), ([0, -1], (2, 3, 2, 2))],
)
def test_axes(axes, shape):
    x = np.asarray(jr.normal(jr.key(0), shape))
    over = tuple(np.atleast_1d(axes))
    for aggregator in (
        aggregating.AveragePerElementUpdates(axes),
        aggregating.AverageIncrementallyUpdates(axes, 1),
        aggregating.PerElementMeanAndSumSqDiffGrads(axes),
    ):
        hash(aggregator)
        mean, found, _ = aggregator.aggregate(jnp.asarray(x), None)
        np.testing.assert_allclose(mean, x.mean(over), rtol=1e-5, atol=1e-6)
    expected = 4 * x.var(over)
    np.testing.assert_allclose(found["sum_sq_diff_grads"], expected, rtol=1e-5)
    assert aggregating.get_batch_size_from_per_elt_updates({"x": x}, axes) == 4


def test_means_of_several_calls():
    params = jnp.zeros((3, 2))
    x = np.asarray(sample(0, 12))
    within = aggregating.AverageIncrementallyUpdates(0, 3)
    out = run(within, in_parts(x, (1, 7, 4)), params)
    np.testing.assert_allclose(out[-1][0], x.mean(0), rtol=1e-5, atol=1e-6)
    for across in (
        aggregating.AccumulateAvgUpdates(12),
        aggregating.AverageIncrementallyUpdates(None, 12),
    ):
        state, update = across.init(params), params
        for i, g in enumerate(x):
            update, state = across.update(jnp.asarray(g), state, params)
            assert state.ready == (i == 11)
            assert bool(update.any()) == (i == 11)
        np.testing.assert_allclose(update, x.mean(0), rtol=1e-5, atol=1e-6)


AGGREGATORS = {
    "mean": (aggregating.AccumulateAvgUpdates(3), ()),
    "mean over elements": (aggregating.AverageIncrementallyUpdates(0, 3), (2,)),
    "variance": (aggregating.PerElementMeanAndSumSqDiffGrads(0, 3), (2,)),
}


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e38])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.costly
def test_one_bad_call_spoils_one_cycle(name, at, bad):
    aggregator, batch = AGGREGATORS[name]
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    grads = jax.tree.map(lambda p: jnp.broadcast_to(p, (*batch, *p.shape)), params)
    spoiled = {**grads, "a": grads["a"].at[..., 0].set(bad)}
    state, update = aggregator.init(params), jax.jit(aggregator.update)
    for i in range(6):
        u, state = update(spoiled if i == at else grads, state, params)
        if i != 2:
            assert (u["a"] == int(i == 5)).all()
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state))


def test_traced_steps():
    """How many calls make one is data: no new trace, and it can be mapped over."""
    params, grads = jnp.zeros(2), jnp.ones((3, 2))
    traced = eqx.debug.assert_max_traces(lambda o, g, s: o.update(g, s), max_traces=1)
    call = eqx.filter_jit(lambda o, g, s: traced(o, g, s))
    for k in (1, 2, 3):
        opt = aggregating.PerElementMeanAndSumSqDiffGrads(0, jnp.asarray(k))
        state = opt.init(params)
        for i in range(6):
            updates, state = call(opt, grads, state)
            assert updates.any() == state.ready == ((i + 1) % k == 0)


def test_an_aggregator_of_the_user():
    class Median(aggregating.AbstractAggregator):
        def init(self, params):
            return None

        def aggregate(self, updates, state, params=None, **extra):
            medians = jax.tree.map(lambda g: jnp.median(g, axis=0), updates)
            return medians, {"value": jnp.ones(())}, state

    params, grads = jnp.ones(2), jnp.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]])
    for opt in (
        eqopt.Chain(Median(), eqopt.SGD(1.0)),
        aggregating.Process(eqopt.Identity(), Median(), eqopt.SGD(1.0)),
    ):
        stepped, _ = opt.step(grads, opt.init(params), params)
        np.testing.assert_allclose(stepped, [-1.0, -5.0])
