"""Many counts at once, and numbers of steps that no count reaches."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqopt import schedules


pytestmark = pytest.mark.slow

BEYOND = 2**31  # the first integer that is no count
HUGE = 3 * 10**9


@pytest.mark.parametrize("kind", [jnp.asarray, np.uint8])
def test_many_counts(case, kind):
    counts = kind(np.arange(10).reshape(2, 5))
    values = case.ours(counts)
    assert isinstance(values, jax.Array)
    assert (values.shape, values.dtype, values.weak_type) == ((2, 5), "float32", False)
    one_by_one = [case.ours(int(count)) for count in counts.ravel()]
    np.testing.assert_allclose(
        values.ravel(), np.stack(one_by_one), rtol=1e-5, atol=1e-7
    )


COUNTS = np.array([0, 10, 10**6, 2**31 - 101, 2**31 - 1])


def test_any_number_of_steps_may_be_beyond_all_counts(case, x64):
    for field in dataclasses.fields(case.ours):
        is_count = type(getattr(case.ours, field.name)) is int and field.name != "power"
        for steps in (HUGE, 10**12) if is_count else ():
            try:
                schedule = dataclasses.replace(case.ours, **{field.name: steps})
            except ValueError as error:  # longer than what it is a part of
                assert "must" in str(error)
                parts = "warmup_steps", "cooldown_steps", "warmup", "decay", "rewarmup"
                assert field.name in parts
                continue
            with x64():
                expected = schedule(jnp.asarray(COUNTS))
            np.testing.assert_allclose(schedule(COUNTS), expected, rtol=1e-5, atol=1e-7)


# Sums and multiples of steps, and steps in lists, that do not fit in int32.
LONG = {
    "linear_sum": schedules.Linear(1.0, 0.1, 2**30, 2**31 - 10),
    "warmup_exponential": schedules.WarmupExponentialDecay(
        0.1, 1.0, HUGE, HUGE, 0.5, HUGE, end_value=0.2
    ),
    "parts_of_the_run": schedules.WarmupDecay(HUGE, 1e-3, 0.9, 0.1, 2, alpha=0.1),
    "piecewise_linear": schedules.PiecewiseInterpolate(
        "linear", 1.0, {10: 0.5, BEYOND - 5: 0.8, HUGE: 0.5, HUGE + 1: 0.1}
    ),
    "multi_step": schedules.MultiStep(1.0, [BEYOND - 1, BEYOND, HUGE]),
    "restarts_multiple": schedules.CosineRestarts(1.0, 10**6, 10, end_value=0.1),
    "sgdr_sum": schedules.SGDR([schedules.WarmupCosineDecay(0.1, 1.0, 5, 2**30)] * 3),
    "join": schedules.Join(
        [schedules.Linear(0.1, 1.0, HUGE), schedules.Constant(2.0), abs], [BEYOND, HUGE]
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_steps_beyond_all_counts(name, x64):
    schedule, counts = LONG[name], COUNTS
    with x64():
        expected = np.asarray(schedule(jnp.asarray(counts)))
    close = functools.partial(
        np.testing.assert_allclose, desired=expected, rtol=1e-5, atol=1e-7
    )
    many = schedule(counts)
    assert (many.dtype, many.weak_type) == ("float32", False)
    close(many)
    close([schedule(int(count)) for count in counts])
    close(jax.jit(jax.vmap(schedule))(jnp.asarray(counts)))
    # A field of NumPy is the same number.
    arrays = jtu.tree_map(lambda x: np.int64(x) if type(x) is int else x, schedule)
    close(eqx.filter_jit(lambda counts: arrays(counts))(jnp.asarray(counts)))


def test_derivatives_where_steps_are_beyond_all_counts():
    def value(init_value, count):
        return schedules.CosineDecay(init_value, HUGE, 0.5, 1.5)(count)

    counts = jnp.array([0, 10**6, 10**9, 2**31 - 1])
    slopes = jax.jit(jax.vmap(jax.grad(value), (None, 0)))(1.0, counts)
    np.testing.assert_allclose(slopes, value(1.0, counts), rtol=1e-6)


def test_steps_beyond_all_counts_without_jit():
    with jax.disable_jit():
        values = [schedules.CosineDecay(1.0, HUGE)(10**9), LONG["sgdr_sum"](10**9)]
    np.testing.assert_allclose(values[0], 0.75, rtol=1e-6)
    np.testing.assert_allclose(values[1], LONG["sgdr_sum"](10**9), rtol=1e-4)


def test_sums_of_arrays_saturate():
    cycle = schedules.WarmupCosineDecay(0.0, 1.0, 0, jnp.asarray(2**31 - 1))
    for count in (10**9, 2**31 - 2):
        assert schedules.SGDR([cycle] * 3)(count) == cycle(count)
