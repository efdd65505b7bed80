"""The values of Optax, and where they differ on purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import schedules


@pytest.mark.costly
def test_values(case):
    counts = case.counts[:: max(1, len(case.counts) // 16)] + case.counts[-3:]
    with jax.numpy_dtype_promotion("standard"):  # Optax's constants are Python numbers
        # One by one, uncompiled: see `test_the_end_is_exact_...` below.
        theirs = np.asarray([case.reference(jnp.int32(t)) for t in counts], np.float32)
    scale = np.max(np.abs(theirs))
    # To rounding: of the value itself, and of the largest one that goes into it.
    ours = np.asarray([case.ours(t) for t in counts])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7 * scale)
    # XLA multiplies with 1 / T here, and fractional powers magnify the difference.
    ours = jax.lax.map(case.ours, jnp.asarray(counts, jnp.int32))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.costly
def test_values_in_float64(case, x64):
    with x64():
        with jax.numpy_dtype_promotion("standard"):
            # With counts in int32, Optax divides in float32.
            theirs = [case.reference(jnp.int64(t)) for t in range(30)]
        ours = [case.ours(jnp.int32(t)) for t in range(30)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)


# Departures. In each, first what Optax does: should that change, so may we.


@pytest.mark.parametrize("begin", [0, 3])
def test_a_transition_of_no_steps_jumps_to_its_end(begin):
    theirs = optax.linear_schedule(1.0, 0.25, 0, begin)
    assert theirs(0) == theirs(100) == 1.0
    for ours in (
        schedules.Linear(1.0, 0.25, 0, begin),
        schedules.Polynomial(1.0, 0.25, 2.0, 0, begin),
        schedules.Linear(1.0, 0.25, jnp.array(0), jnp.array(begin)),
    ):
        values = jax.vmap(ours)(jnp.arange(6))
        np.testing.assert_array_equal(values, np.where(np.arange(6) < begin, 1, 0.25))


def test_a_peak_of_zero_is_followed_by_the_end_value():
    theirs = optax.warmup_cosine_decay_schedule(-1.0, 0.0, 5, 10, end_value=0.25)
    with jax.numpy_dtype_promotion("standard"):
        assert theirs(jnp.int32(10)) == 0
    ours = schedules.WarmupCosineDecay(-1.0, 0.0, 5, 10, end_value=0.25)
    assert ours(5) == 0
    assert ours(10) == 0.25


@pytest.mark.slow
def test_the_end_is_exact_also_where_division_is_not(all_optimizations):
    # Where XLA multiplies with 1 / T, T / T may be more than 1, and a fractional power
    # of what is left NaN. So it is with Optax, in a compiled training loop on the CPU.
    counts = jnp.arange(995, 1010)
    with jax.numpy_dtype_promotion("standard"):
        theirs = jax.lax.map(optax.polynomial_schedule(1.0, 0.0, 3.3, 1000), counts)
    assert jnp.isnan(theirs[5])
    ours = schedules.Polynomial(1.0, 0.0, 3.3, 1000)
    for values in (jax.lax.map(ours, counts), jax.vmap(ours)(counts)):
        assert jnp.all(values[:5] > 0)
        assert jnp.all(values[5:] == 0)

    steps = jnp.arange(1, 400)
    for make, end in (
        (lambda n: schedules.Polynomial(1.0, 0.125, 0.5, n), 0.125),
        (lambda n: schedules.Linear(1.0, 0.0, n), 0),
        (lambda n: schedules.CosineDecay(1.0, n), 0),
    ):
        ends = jax.jit(jax.vmap(lambda n, make=make: make(n)(n)))(steps)
        np.testing.assert_array_equal(ends, end)


def test_zero_warmup_starts_at_the_peak():
    schedule = schedules.WarmupCosineDecay(0.0, 2.0, 0, 10)
    assert schedule(0) == 2.0


def test_a_constant_without_warmup():
    assert optax.warmup_constant_schedule(0.0, 1.0, 0)(100) == 0
    assert schedules.WarmupConstant(0.0, 1.0, 0)(0) == 1


@pytest.mark.slow
def test_a_cycle_whose_phases_have_no_steps():
    # In Optax two boundaries are one key of a dictionary, and the peak is lost.
    with jax.numpy_dtype_promotion("standard"):
        theirs = optax.linear_onecycle_schedule(1, 1.0)
        np.testing.assert_allclose(theirs(jnp.int32(0)), 1 / 25**2, rtol=1e-6)
        theirs = optax.cosine_onecycle_schedule(4, 1.0, pct_start=1.0)
        np.testing.assert_allclose(theirs(jnp.int32(4)), 1e-4 / 25**2, rtol=1e-6)
    for make, start in (
        (schedules.LinearOneCycle, 1 / 25),
        (schedules.CosineOneCycle, 1.0),
    ):
        values = jax.vmap(make(1, 1.0))(jnp.arange(3))
        np.testing.assert_allclose(values, [start, 4e-6, 4e-6], rtol=1e-6)
    values = jax.vmap(schedules.CosineOneCycle(4, 1.0, pct_start=1.0))(jnp.arange(6))
    np.testing.assert_allclose(values[::2][:3], [0.04, 0.52, 4e-6], rtol=1e-6)


def test_the_peak_of_a_cycle_is_the_peak():
    counts = jnp.arange(101)
    for make in (schedules.LinearOneCycle, schedules.CosineOneCycle):
        for peak in (1e-3, 0.3, 7.0):
            assert jnp.max(jax.vmap(make(100, peak))(counts)) == jnp.float32(peak)


@pytest.mark.slow
def test_stairs_are_where_they_should_be():
    # Where XLA multiplies with 1 / T, and rounds down, Optax is late by a step.
    def value(make, steps):
        return make(1.0, steps, 0.5, staircase=True)(steps)

    steps = jnp.arange(1, 400)
    late = []
    with jax.numpy_dtype_promotion("standard"):
        for n in (41, 47, 55, 61, 82, 83, 94):
            theirs = optax.exponential_decay(1.0, n, 0.5, staircase=True)
            late.append(jax.lax.map(theirs, jnp.asarray([n, n]))[0] == 1)
    assert any(late)
    ours = jax.vmap(lambda n: value(schedules.ExponentialDecay, n))(steps)
    np.testing.assert_array_equal(ours, 0.5)
    ours = jax.vmap(lambda n: schedules.Step(1.0, n, 0.5)(n - 1))(steps)
    np.testing.assert_array_equal(ours, 1)


def test_growth_does_not_overflow():
    count = jnp.int32(10_000)
    with jax.numpy_dtype_promotion("standard"):
        theirs = lambda r: optax.exponential_decay(1.0, 10, r, end_value=5.0)(count)
        assert jnp.isnan(jax.grad(theirs)(1.5))
    ours = lambda r: schedules.ExponentialDecay(1.0, 10, r, end_value=5.0)(count)
    assert ours(1.5) == 5
    assert jax.grad(ours)(1.5) == 0
    unbounded = schedules.ExponentialDecay(1.0, 1, 1.5)
    assert 1e25 < unbounded(2**31 - 1) < 1e27


def test_cycles_begin_exactly_also_at_large_counts():
    restarts = schedules.CosineRestarts(1.0, 3, 2)
    for i in (10, 20, 28):
        begin = 3 * (2**i - 1)
        assert restarts(begin) == 1
        assert restarts(begin - 1) < 1e-5
    triangles = schedules.Cyclic(0.0, 1.0, 3, 4)
    for i in (1, 2**24 + 1, 2**28):
        np.testing.assert_allclose(
            [triangles(7 * i + d) for d in range(7)],
            [0, 1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4],
            rtol=1e-6,
        )


def test_pairs_in_any_order():
    as_dict = schedules.PiecewiseConstant(1.0, {20: 0.1, 10: 0.5})
    as_pairs = schedules.PiecewiseConstant(1.0, [(10, 0.5), (20, 0.1)])
    assert as_dict == as_pairs
    assert as_dict.boundaries_and_scales == ((10, 0.5), (20, 0.1))

    def value(boundary, scale):
        return schedules.PiecewiseConstant(1.0, [(boundary, scale)])(10)

    values = jax.vmap(value)(jnp.array([5, 10, 15]), jnp.array([0.5, 0.25, 0.1]))
    np.testing.assert_array_equal(values, [0.5, 0.25, 1])
