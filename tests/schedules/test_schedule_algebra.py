"""Sums, products, bounds and sequences of schedules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.schedules import Constant, CosineDecay, Join, Linear


A, B = Linear(1.0, 3.0, 4), CosineDecay(2.0, 10)


def double(count):
    return 2.0 * jnp.asarray(count, jnp.float32)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (A + B, lambda a, b, t: a + b),
        (A - B, lambda a, b, t: a - b),
        (-A, lambda a, b, t: -a),
        (0.1 * A, lambda a, b, t: 0.1 * a),
        (A * 3, lambda a, b, t: 3 * a),
        (1 - A, lambda a, b, t: 1 - a),
        (double * A, lambda a, b, t: 2 * t * a),
        (double - A, lambda a, b, t: 2 * t - a),
        (A - double, lambda a, b, t: a - 2 * t),
        (A * (B + 1) * 0.5, lambda a, b, t: a * (b + 1) * 0.5),
        (sum([A, B, A]), lambda a, b, t: 2 * a + b),
        (A.clip(1.5, 2.5), lambda a, b, t: min(max(a, 1.5), 2.5)),
        (A.clip(max_value=2), lambda a, b, t: min(a, 2)),
        ((A * B).clip(1.0) - 1, lambda a, b, t: max(a * b, 1) - 1),
    ],
)
def test_values(schedule, expected):
    for t in (0, 1, 3, 4, 7, 10, 100):
        np.testing.assert_allclose(
            schedule(t), expected(float(A(t)), float(B(t)), t), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "kind", [np.uint8, np.int8, np.float16, jnp.uint8, jnp.bfloat16]
)
@pytest.mark.costly
def test_numbers_of_narrow_kinds(kind):
    """The negative of 3 is not 253, and a third has all its digits."""
    for combine in (
        lambda n: A - n,
        lambda n: n - A,
        lambda n: A / n,
        lambda n: A * n,
        lambda n: A + n,
        lambda n: A.clip(n),
    ):
        np.testing.assert_array_equal(combine(kind(3))(1), combine(3.0)(1))
        compiled = jax.jit(lambda n, fn=combine: fn(n)(1))(kind(3))
        np.testing.assert_allclose(compiled, combine(3.0)(1), rtol=1e-6)


@pytest.mark.parametrize(
    "combine", [lambda: A + "a", lambda: A * None, lambda: A / B, lambda: A - True]
)
def test_what_is_no_schedule(combine):
    with pytest.raises(TypeError, match=r"unsupported operand|sequence"):
        combine()


def test_population_and_derivative():
    population = eqx.filter_vmap(lambda c: c * A)(jnp.array([1.0, 2.0]))
    values = eqx.filter_vmap(lambda s: s(2))(population)
    np.testing.assert_allclose(values, [2.0, 4.0])
    derivative = jax.grad(lambda c: (c * A).clip(0.0, 10.0)(2))
    assert derivative(1.0) == 2.0
    assert derivative(100.0) == 0.0


def test_join_switches_exactly_at_large_counts():
    boundary = 2**24 + 1  # not a float32
    joined = Join([Constant(1.0), Constant(2.0)], [boundary])
    assert joined(boundary - 1) == 1.0
    assert joined(boundary) == 2.0
    late = Linear(1.0, 0.0, 10, boundary)
    assert late(boundary) == 1.0
    assert late(boundary + 1) < 1.0
    assert late(boundary + 10) == 0.0


def test_join_gives_each_schedule_counts_of_its_own():
    seen = []

    def spy(count):
        seen.append(int(count))
        return 0.0

    joined = Join([spy, spy, spy], [4, 10])
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

        schedule = Join([reciprocal, Constant(scale)], [4])
        return jnp.sum(jax.vmap(schedule)(jnp.arange(8)))

    value, derivative = jax.value_and_grad(blows_up)(1.0)
    expected = 1 / 4 + 1 / 3 + 1 / 2 + 1 + 4
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(derivative, expected, rtol=1e-6)


def test_a_first_schedule_without_steps():
    joined = Join([Constant(1.0), Constant(2.0)], [0])
    assert joined(0) == 2.0
