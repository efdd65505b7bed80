"""Rounding at random, and sums that keep what rounding takes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

import eqopt
from eqopt.storage import Cast, KahanSummation, StochasticRounding
from eqopt.storage._rounding import random_bits, rounded_up_or_down


LARGEST = float(jnp.finfo(jnp.float32).max)
TINY = float(jnp.finfo(jnp.float32).tiny)
every_draw = jax.jit(
    lambda x: rounded_up_or_down(x[:, None], jnp.arange(2**16, dtype=jnp.uint32)[None])
)


def rounded(numbers):
    """Each number in all 2^16 ways."""
    return np.float64(every_draw(np.float32(numbers)))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4, 5), (0, 3)], ids=str)
def test_the_bits_are_those_of_jax(impl, shape):
    key = jr.key(3, impl=impl)
    ours = jax.jit(lambda key: random_bits(key, shape))(key)
    np.testing.assert_array_equal(ours, jr.bits(key, shape, jnp.uint32))
    with jax.threefry_partitionable(False):
        ours = random_bits(key, shape)
        np.testing.assert_array_equal(ours, jr.bits(key, shape, jnp.uint32))


def test_the_mean_of_all_draws_is_exact():
    rng = np.random.default_rng(0)
    random = rng.normal(size=24) * 10.0 ** rng.integers(-30, 30, 24)
    edges = [0, -0.0, 1, -1.5, np.pi, 1 + 2**-8, 1 + 2**-23, -2 + 2**-23, 0.1, TINY]
    numbers = np.float32([*random, *edges])
    found = rounded(numbers)
    # A sum of 2^16 numbers of 8 bits is exact in float64.
    np.testing.assert_array_equal(found.mean(1), np.float64(numbers))
    # And each is one of two neighbours.
    for x, row in zip(numbers, found, strict=True):
        neighbours = np.unique(row)
        assert len(neighbours) <= 2
        assert neighbours.min() <= x <= neighbours.max()
        assert neighbours.max() - neighbours.min() <= 2.0**-7 * abs(x)


def test_what_has_no_neighbour():
    top = float(jnp.finfo(jnp.bfloat16).max)
    found = rounded([np.inf, -np.inf, np.nan, -np.nan, top, -top])
    np.testing.assert_array_equal(found[0], np.inf)
    np.testing.assert_array_equal(found[1], -np.inf)
    assert np.isnan(found[2:4]).all()
    np.testing.assert_array_equal(found[4:], [[top], [-top]] * np.ones(2**16))
    # Above the largest number of bfloat16 comes infinity, as for the nearest one.
    found = rounded([LARGEST])
    assert set(found[0]) == {top, np.inf}
    # XLA may take the smallest numbers for zeros.
    found = rounded([1e-40, -1e-44])
    assert (np.abs(found) <= TINY).all()


MODEL = {"a": jnp.ones(64, jnp.bfloat16), "b": jnp.ones(64, jnp.bfloat16)}
GRADS = jax.tree.map(lambda p: jnp.full_like(p, 0.001), MODEL)


def steps(key, count=2):
    """The parameters after each step of SGD."""
    opt = eqopt.StoreParams(eqopt.SGD(1.0), StochasticRounding(key))
    step, state, params, found = eqx.filter_jit(opt.step), opt.init(MODEL), MODEL, []
    for _ in range(count):
        params, new = step(GRADS, state, params)
        keys = [jax.tree.leaves(x.hidden) for x in (state, new)]
        assert len(keys[0]) == 2
        for old, later in zip(*keys, strict=True):
            assert (old != later).any()
        state = new
        found.append(jax.tree.map(np.float32, params))
    return found


@pytest.mark.slow
def test_no_two_draws_are_the_same():
    first, second = steps(0)
    assert (first["a"] != first["b"]).any()
    moved = [first["a"] != 1, second["a"] != first["a"]]
    assert moved[0].any() and (moved[0] != moved[1]).any()
    again, _ = steps(0)
    np.testing.assert_array_equal(again["a"], first["a"])
    other, _ = steps(1)
    assert (other["a"] != first["a"]).any()


def walk(opt, count=10_000, size=1):
    """1, to which 1e-4 is added again and again, and what is known of it in the end."""

    def step(carry, _):
        params, state = carry
        return opt.step(jnp.full(size, -1e-4, params.dtype), state, params), None

    def run(params):
        start = params, opt.init(params)
        (params, state), _ = lax.scan(step, start, None, count)
        return params, opt.full_params(state, params)

    return map(np.float64, jax.jit(run)(jnp.ones(size, jnp.bfloat16)))


def test_a_kahan_sum_arrives():
    found, full = walk(eqopt.StoreParams(eqopt.SGD(1.0), KahanSummation()))
    assert 1.9 <= found <= 2.1
    assert abs(full - found) <= 2**-7  # half of what is between two numbers at 2


def test_random_steps_arrive_in_the_mean():
    opt = eqopt.StoreParams(eqopt.SGD(1.0), StochasticRounding())
    found, full = walk(opt, 1000, 512)
    step = float(jnp.bfloat16(1e-4))
    # Steps of 2^-7 with a probability of 1.3 %: the mean of 512 spreads by 0.0012.
    assert abs(found.mean() - 1 - 1000 * step) <= 0.005
    assert len(np.unique(found)) > 5
    np.testing.assert_array_equal(full, found)


def test_kahan_keeps_all_bits_there_are():
    """The parameter and its error are the float32 number to 16 binary digits."""
    opt = eqopt.StoreParams(eqopt.SGD(1.0), KahanSummation())
    params = jnp.ones(200, jnp.bfloat16)
    grads = jnp.asarray(np.random.default_rng(0).normal(size=200), jnp.float32)
    params, state = opt.step(grads, opt.init(params), params)
    exact = np.float64(1 - grads)
    np.testing.assert_array_equal(np.float64(params), np.float64(jnp.bfloat16(exact)))
    full = opt.full_params(state, params)
    assert full.dtype == jnp.float32
    np.testing.assert_allclose(full, exact, 2.0**-16)


def test_kahan_after_infinity():
    opt = eqopt.StoreParams(eqopt.SGD(1.0), KahanSummation())
    params = jnp.ones(2, jnp.bfloat16)
    params, state = opt.step(jnp.array([jnp.inf, 0.0]), opt.init(params), params)
    params, state = opt.step(jnp.zeros(2), state, params)
    np.testing.assert_array_equal(np.float32(params), [-np.inf, 1])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_cast(dtype):
    opt = eqopt.StoreState(eqopt.Trace(0.5), Cast(dtype), eqopt.groups.everything)
    params = jnp.zeros(3)
    grads = jnp.array([0.1, 1 + 2.0**-12, 3.0])
    _, state = opt.update(grads, opt.init(params), params)
    trace = eqopt.tree.get(state, "trace")
    assert trace.rounded.dtype == dtype and trace.dtype == jnp.float32
    np.testing.assert_array_equal(trace.rounded, grads.astype(dtype))
    updates, _ = opt.update(grads, state, params)
    half = 0.5 * np.float32(grads.astype(dtype))
    np.testing.assert_array_equal(updates, half + np.asarray(grads))


@pytest.mark.slow
def test_a_state_rounded_at_random():
    """An average of which each step is too small for bfloat16."""
    opt = eqopt.StoreState(eqopt.EMA(0.999), StochasticRounding())
    grads = jnp.ones(4096)
    state = opt.init(grads)
    step = lambda state, _: (opt.update(grads, state)[1], None)
    state, _ = lax.scan(step, state, None, 1000)
    found = eqopt.tree.get(state, "ema")
    assert found.seen.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.mean(found.load()), 1 - 0.999**1000, 0.005)


def test_each_array_has_its_own_key():
    """Also in two states of parts of a model, and next to a stored parameter."""
    random = eqopt.storage.StochasticRounding()
    of_part = eqopt.StoreState(eqopt.Adam(0.1), random, eqopt.groups.everything)
    parts = eqopt.Partition({"a": of_part, "b": of_part}, {"a": "a", "b": "b"})
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)}
    state = eqopt.StoreParams(parts, random).init(params)
    keys = [x.tolist() for x in jax.tree.leaves(state) if x.dtype == jnp.uint32]
    assert len(keys) == 6 and len({*map(tuple, keys)}) == 6
