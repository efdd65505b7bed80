"""What holds for every schedule: kinds of counts, transformations, fields as data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqopt import schedules

from ..interpreter import interpreted


LARGEST = 2**31 - 1


def _as_arrays(schedule, dtype=jnp.float32):
    """The same schedule with 0-d arrays instead of numbers."""
    return jtu.tree_map(
        lambda x: (
            x
            if callable(x)
            else jnp.asarray(x, jnp.int32 if isinstance(x, int) else dtype)
        ),
        schedule,
    )


def _assert_plain(value, dtype=jnp.float32):
    assert isinstance(value, jax.Array)
    assert value.shape == ()
    assert value.dtype == dtype
    assert not value.weak_type


@pytest.mark.costly
def test_kinds_of_counts(case):
    expected = case.ours(6)
    _assert_plain(expected)
    for count in (
        np.int8(6),
        np.int64(6),
        np.uint32(6),
        np.asarray(6),
        jnp.int32(6),
        jnp.int8(6),
        jnp.uint8(6),
        jnp.uint32(6),
        jnp.asarray(6),  # weakly typed
    ):
        value = case.ours(count)
        _assert_plain(value)
        assert value == expected, repr(count)


@pytest.mark.costly
def test_transformations(case):
    counts = np.arange(8, dtype=np.int32)
    one_by_one = np.stack([case.ours(count) for count in counts])
    vmapped = interpreted(jax.vmap(case.ours))(jnp.asarray(counts))
    assert vmapped.dtype == jnp.float32
    np.testing.assert_allclose(vmapped, one_by_one, rtol=1e-5, atol=1e-7)

    def body(carry, _):
        count, _ = carry
        value = case.ours(count)  # of the type that it had outside, or `scan` complains
        return (count + 1, value), value

    init = (jnp.zeros((), jnp.int32), case.ours(0))
    _, scanned = interpreted(lambda init: jax.lax.scan(body, init, length=8))(init)
    np.testing.assert_allclose(scanned, one_by_one, rtol=1e-5, atol=1e-7)
    shape = eqx.filter_eval_shape(case.ours, jax.ShapeDtypeStruct((), jnp.int32))
    assert shape == jax.ShapeDtypeStruct((), jnp.float32)


@pytest.mark.costly
def test_constants_of_a_trace(case):
    """Made inside `jit` of arrays with values, which are checked, and not traced."""
    arrays = _as_arrays(case.ours)
    make = lambda: type(arrays)(**vars(arrays))
    value = jax.jit(lambda count: make()(count))(6)
    np.testing.assert_allclose(value, case.ours(6), rtol=1e-5, atol=1e-7)


@pytest.mark.costly
def test_nothing_happens_after_the_end(case):
    end = case.ours(case.horizon + 2000)
    assert jnp.isfinite(end)
    if not case.settles:
        end = case.ours(LARGEST)
        assert jnp.isfinite(end)
    for count in (
        LARGEST - case.settles,
        LARGEST,
        2**40,
        np.int64(2**40),
        jnp.int32(LARGEST),
        jnp.asarray(2**32 - 1, jnp.uint32),
    ):
        np.testing.assert_allclose(case.ours(count), end, rtol=1e-6, atol=2e-6)


@pytest.mark.costly
def test_a_negative_count_is_taken_for_zero(case):
    start = case.ours(0)
    for count in (-1, -(2**31), -(2**40), jnp.int32(-7), jnp.int32(-(2**31))):
        assert case.ours(count) == start


def test_fields_may_be_arrays(case):
    schedule = _as_arrays(case.ours)
    for count in (0, 6, case.horizon, case.horizon + 3):
        value = schedule(count)
        _assert_plain(value)
        np.testing.assert_allclose(value, case.ours(count), rtol=1e-6)
    low = _as_arrays(case.ours, jnp.bfloat16)
    _assert_plain(low(6))


@pytest.mark.costly
def test_new_values_do_not_trace_again(case):
    traces = 0

    @eqx.filter_jit
    def evaluate(schedule, count):
        nonlocal traces
        traces += 1
        return schedule(count)

    schedule = _as_arrays(case.ours)
    for factor in (1, 2, 3):
        arrays, rest = eqx.partition(schedule, eqx.is_array)
        scaled = jtu.tree_map(lambda x, factor=factor: x * factor, arrays)
        evaluate(eqx.combine(scaled, rest), jnp.int32(factor))
    assert traces == 1

    traces = 0
    evaluate(case.ours, jnp.int32(0))
    evaluate(jtu.tree_map(lambda x: x, case.ours), jnp.int32(1))  # an equal one
    assert traces == 1


@pytest.mark.costly
def test_float64_in_64_bit_mode(case, x64):
    """Whatever the dtypes of the count and of the fields."""
    with x64():
        for count in (2, np.int64(2), jnp.asarray(2), jnp.int32(2), jnp.int64(2**40)):
            _assert_plain(case.ours(count), jnp.float64)
        for dtype in (jnp.int32, jnp.int64):
            traced = jax.eval_shape(case.ours, jax.ShapeDtypeStruct((), dtype))
            assert traced.dtype == jnp.float64
        narrow = _as_arrays(case.ours)(2)
        _assert_plain(narrow, jnp.float64)
        np.testing.assert_allclose(narrow, case.ours(2), rtol=1e-6)


@pytest.mark.costly
def test_derivatives_are_finite(case):
    values, rest = eqx.partition(_as_arrays(case.ours), eqx.is_inexact_array)
    counts = jnp.asarray([*case.counts, LARGEST])

    @interpreted
    def derivatives(values):
        def evaluate(values, count):
            return eqx.combine(values, rest)(count)

        return jax.lax.map(lambda count: jax.grad(evaluate)(values, count), counts)

    assert all(jnp.all(jnp.isfinite(x)) for x in jtu.tree_leaves(derivatives(values)))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.costly
def test_derivatives_by_exponents_at_the_ends(exponent):
    for make in (
        lambda x: schedules.Polynomial(1.0, 0.0, x, 10),
        lambda x: schedules.CosineDecay(1.0, 10, exponent=x),
    ):
        for count in (0, 9, 10, 11):
            fn = lambda x: make(x)(count)  # noqa: B023
            first, second = jax.grad(fn), jax.grad(jax.grad(fn))
            assert jnp.isfinite(first(exponent))
            assert jnp.isfinite(second(exponent))
            assert count == 9 or first(exponent) == 0


def test_population():
    peaks = jnp.array([0.1, 0.2, 0.3])
    population = eqx.filter_vmap(
        lambda peak: schedules.WarmupCosineDecay(0.0, peak, 5, 20)
    )(peaks)
    values = eqx.filter_vmap(lambda schedule: schedule(5))(population)
    np.testing.assert_array_equal(values, peaks)
    with pytest.raises(ValueError, match=r"must be 0-d.*filter_vmap"):
        population(5)


STEPS = jnp.array([-5, 0, 1, 10, LARGEST])
UNCHECKED = {
    "Linear": lambda n: schedules.Linear(1.0, 0.5, n),
    "CosineDecay": lambda n: schedules.CosineDecay(1.0, n, 0.5),
    "WarmupCosineDecay": lambda n: schedules.WarmupCosineDecay(0.0, 1.0, n, n, 0.5),
    "Join": lambda n: schedules.Join(
        [schedules.Constant(1), schedules.Constant(2)], [n]
    ),
    "ExponentialDecay": lambda n: schedules.ExponentialDecay(1.0, n, 0.5, n),
    "WarmupConstant": lambda n: schedules.WarmupConstant(0.0, 1.0, n),
    "WarmupExponentialDecay": lambda n: schedules.WarmupExponentialDecay(
        0.0, 1.0, n, n, 1.5, n, staircase=True
    ),
    "WarmupStableDecay": lambda n: schedules.WarmupStableDecay(
        0.0, 1.0, n, n, n, cooldown="1-sqrt"
    ),
    "WarmupDecay": lambda n: schedules.WarmupDecay(n, n, 0.3, n, [0.5, n]),
    "InverseSquareRoot": lambda n: schedules.InverseSquareRoot(0.0, 1.0, n, n),
    "Step": lambda n: schedules.Step(1.0, n),
    "MultiStep": lambda n: schedules.MultiStep(1.0, [n, 5]),
    "PiecewiseConstant": lambda n: schedules.PiecewiseConstant(1.0, [(n, 0.5)]),
    "PiecewiseInterpolate": lambda n: schedules.PiecewiseInterpolate(
        "cosine", 1.0, [(7, 0.5), (n, 0.5)]
    ),
    "CosineOneCycle": lambda n: schedules.CosineOneCycle(n, 1.0),
    "LinearOneCycle": lambda n: schedules.LinearOneCycle(n, 1.0),
    "CosineRestarts": lambda n: schedules.CosineRestarts(1.0, n, n),
    "SGDR": lambda n: schedules.SGDR([schedules.WarmupCosineDecay(0.0, 1.0, n, n)] * 2),
    "Cyclic": lambda n: schedules.Cyclic(0.0, 1.0, n, n),
}


@pytest.mark.parametrize("name", UNCHECKED)
@pytest.mark.costly
def test_numbers_of_steps_that_cannot_be_checked(name):
    """What is traced may be out of range, and still gives no NaN."""

    def value(n, count):
        return UNCHECKED[name](n)(count)

    counts = jnp.array([0, 3, 9, 1000, LARGEST])
    values = jax.jit(jax.vmap(jax.vmap(value, (None, 0)), (0, None)))(STEPS, counts)
    assert jnp.all(jnp.isfinite(values))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: schedules.Linear(x, -x, 4),
        lambda x: schedules.WarmupStableDecay(-x, x, 1, 4, 2, -x),
        lambda x: schedules.PiecewiseInterpolate("linear", x, {2: 0.5, 4: 2.0}),
    ],
)
@pytest.mark.slow
def test_no_difference_overflows(make, all_optimizations):
    """The difference of two numbers of float32 may exceed its range."""
    counts = jnp.arange(7)
    huge, small = (
        np.asarray(jax.jit(make(x))(counts), np.float64) for x in (3e38, 3.0)
    )
    np.testing.assert_allclose(huge / 1e38, small, rtol=1e-6, atol=1e-6)


def test_fractions_of_steps():
    cycle = lambda start: schedules.CosineOneCycle(20, 1.0, start)
    starts = jnp.array([0.0, 0.3, 1.0])
    values = jax.vmap(lambda start: jax.vmap(cycle(start))(jnp.arange(21)))(starts)
    np.testing.assert_array_equal(jnp.argmax(values[:2], axis=1), jnp.array([0, 6]))
    assert jnp.all(values[2, 1:20] > values[2, :19])
    late = schedules.LinearOneCycle(LARGEST, 1.0, 1.0, 1.0)
    assert late(LARGEST - 1) > 0.99
    arrays = _as_arrays(late)
    assert arrays(LARGEST) == late(LARGEST) == jnp.float32(4e-6)


def test_value_is_no_alias():
    value = jnp.array(0.3)
    out = schedules.Constant(value)(0)
    assert out.unsafe_buffer_pointer() != value.unsafe_buffer_pointer()


def test_a_class_of_ones_own():
    class InverseSqrt(schedules.AbstractSchedule):
        peak_value: float | jax.Array

        def __call__(self, count):
            return self.peak_value / jnp.sqrt(1 + jnp.asarray(count, jnp.float32))

    joined = schedules.Join([schedules.Constant(1.0), InverseSqrt(1.0)], [4])
    assert joined(4 + 3) == 0.5
    with pytest.raises(TypeError, match="abstract"):
        schedules.AbstractSchedule()  # pyright: ignore[reportAbstractUsage]
