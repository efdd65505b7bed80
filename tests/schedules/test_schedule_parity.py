"""The values of Optax in float32, and where they differ on purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import schedules


def test_values(case):
    counts = case.counts[:: max(1, len(case.counts) // 16)] + case.counts[-3:]
    with jax.numpy_dtype_promotion("standard"):  # Optax's constants are Python numbers
        # One by one, uncompiled: see `test_the_end_is_exact_...` below.
        theirs = np.asarray([case.optax(jnp.int32(t)) for t in counts], np.float32)
    scale = np.max(np.abs(theirs))
    # To rounding: of the value itself, and of the largest one that goes into it.
    ours = np.asarray([case.ours(t) for t in counts])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7 * scale)
    # XLA multiplies with 1 / T here, and fractional powers magnify the difference.
    ours = jax.lax.map(case.ours, jnp.asarray(counts, jnp.int32))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * scale)


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


def test_the_end_is_exact_also_where_division_is_not():
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
