"""Properties of the values, over many schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from eqopt import schedules


COUNTS = jnp.arange(64)

# XLA on the CPU takes subnormal numbers for zero.
values = st.floats(
    -10, 10, width=32, allow_subnormal=False
).map(lambda x: 0.0 if abs(x) < 1e-30 else x)  # fmt: skip
rates = st.floats(2**-20, 10, width=32)
powers = st.floats(0.25, 4, width=32)
steps = st.integers(0, 70)
few = settings(max_examples=25, deadline=None, derandomize=True)


def _over_counts(schedule):
    return np.asarray(jax.vmap(schedule)(COUNTS), np.float64)


def _assert_between(values, a, b):
    slack = 4e-7 * max(abs(a), abs(b))
    assert np.all(values >= min(a, b) - slack)
    assert np.all(values <= max(a, b) + slack)


def _assert_monotone(values, a, b):
    slack = 4e-7 * max(abs(a), abs(b))
    change = np.diff(values)
    assert np.all(change >= -slack) if a <= b else np.all(change <= slack)


@few
@given(values, values, powers, steps, steps)
@pytest.mark.slow
def test_polynomial(init, end, power, duration, begin):
    for schedule in (
        schedules.Linear(init, end, duration, begin),
        schedules.Polynomial(init, end, power, duration, begin),
    ):
        out = _over_counts(schedule)
        _assert_between(out, init, end)
        _assert_monotone(out, init, end)
        np.testing.assert_array_equal(out[begin + duration :], end)
        np.testing.assert_allclose(out[:begin], init, atol=4e-7 * (abs(init - end)))


@few
@given(values, values, steps, steps)
@pytest.mark.slow
def test_power_one_is_linear(init, end, duration, begin):
    line = _over_counts(schedules.Linear(init, end, duration, begin))
    power = _over_counts(schedules.Polynomial(init, end, 1, duration, begin))
    np.testing.assert_allclose(power, line, atol=1e-6 * (abs(init) + abs(end)))


@few
@given(values, st.integers(1, 70), st.floats(0, 1, width=32), powers)
def test_cosine(init, duration, alpha, exponent):
    out = _over_counts(schedules.CosineDecay(init, duration, alpha, exponent))
    _assert_between(out, init, alpha * init)
    _assert_monotone(out, init, alpha * init)
    np.testing.assert_allclose(out[0], init, rtol=1e-6)
    np.testing.assert_allclose(out[duration:], np.float32(alpha) * init, rtol=1e-6)


@few
@given(values, rates, steps, st.integers(1, 70), values, powers)
def test_warmup_cosine(init, peak, warmup, decay, end, exponent):
    total = warmup + decay
    out = _over_counts(
        schedules.WarmupCosineDecay(init, peak, warmup, total, end, exponent)
    )
    _assert_between(out[: warmup + 1], init, peak)
    _assert_monotone(out[: warmup + 1], init, peak)
    _assert_between(out[warmup:], peak, end)
    _assert_monotone(out[warmup:], peak, end)
    np.testing.assert_array_equal(out[total:], end)


@few
@given(values, values, values, st.integers(0, 30), st.integers(1, 30))
@pytest.mark.slow
def test_join(a, b, c, first, second):
    """Pieces that meet give a curve without jumps, and each counts from 0."""
    pieces = [schedules.Linear(a, b, first), schedules.Linear(b, c, second)]
    out = _over_counts(schedules.Join(pieces, [first]))
    apart = [_over_counts(piece) for piece in pieces]
    np.testing.assert_array_equal(out[:first], apart[0][:first])
    np.testing.assert_array_equal(out[first:], apart[1][: len(out) - first])
    slopes = [abs(b - a) / max(first, 1), abs(c - b) / second]
    slack = 2e-6 * max(abs(a), abs(b), abs(c))
    assert np.all(np.abs(np.diff(out)) <= max(slopes) + slack)


def test_join_switches_exactly_at_large_counts():
    boundary = 2**24 + 1  # not a float32
    joined = schedules.Join(
        [schedules.Constant(1.0), schedules.Constant(2.0)], [boundary]
    )
    assert joined(boundary - 1) == 1.0
    assert joined(boundary) == 2.0
    late = schedules.Linear(1.0, 0.0, 10, boundary)
    assert late(boundary) == 1.0
    assert late(boundary + 1) < 1.0
    assert late(boundary + 10) == 0.0


def test_join_gives_each_schedule_counts_of_its_own():
    seen = []

    def spy(count):
        seen.append(int(count))
        return 0.0

    joined = schedules.Join([spy, spy, spy], [4, 10])
    for count, expected in (
        (0, [0, 0, 0]),
        (3, [3, 0, 0]),
        (4, [3, 0, 0]),
        (9, [3, 5, 0]),
        (10, [3, 5, 0]),
        (12, [3, 5, 2]),
    ):
        seen.clear()
        joined(count)
        assert seen == expected


def test_join_is_not_poisoned_by_what_it_does_not_use():
    def blows_up(scale):
        def reciprocal(count):
            return scale / (4 - count).astype(jnp.float32)

        schedule = schedules.Join([reciprocal, schedules.Constant(scale)], [4])
        return jnp.sum(jax.vmap(schedule)(jnp.arange(8)))

    value, derivative = jax.value_and_grad(blows_up)(1.0)
    expected = 1 / 4 + 1 / 3 + 1 / 2 + 1 + 4
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(derivative, expected, rtol=1e-6)


def test_a_first_schedule_without_steps():
    joined = schedules.Join([schedules.Constant(1.0), schedules.Constant(2.0)], [0])
    assert joined(0) == 2.0
