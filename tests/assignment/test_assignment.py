"""Against SciPy's linear_sum_assignment."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from eqopt.assignment import base_hungarian_algorithm, hungarian_algorithm


SHAPES = [(1, 4), (6, 6), (4, 7), (7, 4), (40, 60)]
COSTS = {
    "normal": lambda random, shape: random.normal(size=shape),
    "negative": lambda random, shape: -100 * random.exponential(size=shape),
    "integer": lambda random, shape: random.integers(-3, 4, size=shape),
    "equal": lambda random, shape: np.full(shape, 2.5),
    "product": lambda random, shape: np.outer(*(1 + np.arange(n) for n in shape)),
    "offset": lambda random, shape: 1e6 + random.integers(0, 50, size=shape),
    "tiny": lambda random, shape: 1e-30 * random.normal(size=shape),
    "sparse": lambda random, shape: np.where(
        (random.random(shape) < 0.3) & ~np.eye(*shape, dtype=bool), np.inf, 1.5
    ),
}


@pytest.fixture(params=[hungarian_algorithm, base_hungarian_algorithm])
def solve(request):
    return request.param


def _check(solve, costs):
    i, j = map(np.asarray, solve(jnp.asarray(costs)))
    pairs = min(costs.shape)
    assert i.dtype == j.dtype == np.int32
    assert i.shape == j.shape == (pairs,)
    assert (np.diff(i) > 0).all()
    assert len(set(j)) == pairs
    costs = np.asarray(costs, float)
    best = scipy.optimize.linear_sum_assignment(costs)
    np.testing.assert_allclose(
        costs[i, j].sum(), costs[best].sum(), atol=1e-6 * np.abs(costs[best]).sum()
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.costly
def test_sum_is_the_least(solve, kind, shape):
    random = np.random.default_rng(0)
    for _ in range(5 if min(shape) < 9 else 1):
        costs = COSTS[kind](random, shape)
        _check(solve, costs.astype(np.int32 if costs.dtype.kind == "i" else np.float32))


@pytest.mark.slow
def test_prices_of_free_columns_are_zero(solve):
    """A wide matrix has columns without a row, whose prices must be zero."""
    _check(solve, jnp.array([[5.0, 1.0, 9.0], [6.0, 1.5, 9.0]]))
    for seed in range(20):
        _check(solve, np.random.default_rng(seed).random((3, 4)).astype(np.float32))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty(solve, shape):
    i, j = solve(jnp.zeros(shape))
    assert i.shape == j.shape == (0,)
    assert i.dtype == j.dtype == jnp.int32


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2)])
@pytest.mark.costly
def test_forbidden_pairs(solve, shape):
    # All are; one row has no other; one row has one that another needs.
    nothing = np.full(shape, np.inf)
    row = np.ones(shape)
    row[0] = np.inf
    needed = np.full(shape, np.inf)
    needed[:, 0] = 1
    for costs in (nothing, row, needed):
        i, j = solve(jnp.asarray(costs, jnp.float32))
        assert len(set(np.asarray(i))) == len(set(np.asarray(j))) == min(shape)
        infeasible = np.isinf(costs[i, j].sum())
        try:
            scipy.optimize.linear_sum_assignment(costs)
        except ValueError:
            assert infeasible
        else:
            assert not infeasible


@pytest.mark.costly
def test_integers_beyond_float32_under_x64(solve, x64):
    with x64():
        costs = jnp.array([[2**24 + 1, 2**24], [2**24 + 1, 2**24 + 1]])
        _check(solve, np.asarray(costs))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.uint8])
@pytest.mark.costly
def test_dtypes(solve, dtype):
    costs = jnp.asarray(np.random.default_rng(2).integers(0, 100, (6, 6)), dtype)
    _check(solve, costs)


@pytest.mark.slow
def test_transformations(solve):
    stack = jnp.asarray(np.random.default_rng(3).random((5, 6, 4)), jnp.float32)
    stack = stack.at[2].set(1.0).at[3].set(jnp.inf)
    i, j = jax.jit(jax.vmap(solve))(stack)
    for costs, i_k, j_k in zip(stack, i, j, strict=True):
        one = solve(costs)
        np.testing.assert_array_equal(i_k, one[0])
        np.testing.assert_array_equal(j_k, one[1])
    shapes = jax.eval_shape(solve, jax.ShapeDtypeStruct((6, 4), jnp.int32))
    assert [x.shape for x in shapes] == [(4,), (4,)]


@pytest.mark.slow
def test_derivative_of_the_least_sum(solve):
    costs = jnp.asarray(np.random.default_rng(4).random((4, 5)), jnp.float32)
    least = lambda costs: costs[solve(costs)].sum()
    chosen = np.zeros((4, 5))
    chosen[solve(costs)] = 1
    np.testing.assert_array_equal(jax.grad(least)(costs), chosen)


@pytest.mark.slow
def test_what_is_traced_ends(solve):
    """NaN and -inf cannot be refused there, and must not make an endless loop."""
    for value in (jnp.nan, -jnp.inf):
        costs = jnp.ones((3, 3)).at[1, 1].set(value)
        i, j = jax.jit(solve)(costs)
        assert (i != 1).any() or j[1] != 1
        i, j = jax.jit(solve)(jnp.full((3, 3), value))
        assert sorted(map(int, j)) == [0, 1, 2]


ONES = jnp.ones((2, 2))
WRONG = [
    (lambda f: f(jnp.ones((2, 2, 2))), ["`cost_matrix`", "(2, 2, 2)", "dtype float32"]),
    (lambda f: f(ONES.at[0, 1].set(jnp.nan)), ["nan", "[0, 1]"]),
    (lambda f: f(ONES.at[1, 0].set(-jnp.inf)), ["-inf", "[1, 0]"]),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_message(solve, call, words):
    with pytest.raises(ValueError, match=re.escape(solve.__name__)) as info:
        call(solve)
    for word in words:
        assert word in str(info.value)
