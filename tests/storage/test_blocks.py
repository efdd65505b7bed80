"""Arrays in blocks: scales, tails, and what happens to numbers that are not ordinary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.storage import BlockwiseQuantized, Float8, Slot

from .books import BOOKS, in_cell, largest_error


STORAGES = {name: BlockwiseQuantized(int(name[0]), 64) for name in BOOKS}
STORAGES["float8"] = Float8(64)
SLOW = pytest.mark.slow
# What has code of its own for blocks; the rest is slow.
QUICK = {"8 bits, signed", "4 bits, unsigned"}
ALL = pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=SLOW) for x in STORAGES]
)
TINY = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)


def slot(name):
    return Slot(0, nonnegative="unsigned" in name)


def kept(name, x):
    return STORAGES[name].keep(jnp.asarray(x), slot(name))


# As one program each: by themselves, operations are compiled one by one.
load = jax.jit(lambda stored: stored.load())
store = jax.jit(lambda stored, new: stored.store(new))


def loaded(name, x):
    return np.asarray(load(kept(name, x)))


def codes_of(stored, bits):
    """The codes, unpacked; two neighbours of 4 bits share a byte."""
    codes = np.asarray(stored.codes)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1)
    return codes.ravel()[: stored.size]


# Blocks of 64 numbers, as they are found in a state and as they should never be.
def blocks(is_unsigned):
    rng = np.random.default_rng(1)
    sign = 1 if is_unsigned else rng.choice([-1, 1], 64)
    found = {
        "normal": rng.normal(size=64),
        "of all sizes": 10 ** rng.uniform(-12, 3, 64) * sign,
        "constant": np.full(64, 0.3),
        "one number": np.eye(64)[5] * 7,
        "large": rng.uniform(0.01, 3.3, 64) * 1e38 * sign,
        "the largest": np.full(64, LARGEST) * sign,
        "small": rng.uniform(1, 9, 64) * 1e-37 * sign,
    }
    found = {key: np.float32(x) for key, x in found.items()}
    return {key: np.abs(x) if is_unsigned else x for key, x in found.items()}


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.costly
def test_codes_and_scales(name):
    book = BOOKS[name]
    for what, x in blocks("unsigned" in name).items():
        stored = kept(name, x)
        np.testing.assert_array_equal(stored.scales, np.abs(x).max()[None])
        y = (x / np.abs(x).max()).astype(np.float32)
        codes = codes_of(stored, int(name[0]))
        assert in_cell(book, y, codes).all(), what
        np.testing.assert_allclose(
            load(stored),
            book.numbers[codes] * stored.scales[0],
            1e-6,
            TINY,
            err_msg=what,
        )
        error = np.abs(np.float64(load(stored)) - x) / np.abs(x).max()
        assert (error <= largest_error(book, codes) + 2e-6 * np.abs(y)).all(), what


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.costly
def test_again_it_is_the_same(name):
    for what, x in blocks("unsigned" in name).items():
        x[np.abs(x).argmax()] = np.abs(x).max()  # 4 bits have a 1, but no -1
        once = kept(name, x)
        twice = store(once, load(once))
        np.testing.assert_array_equal(twice.codes, once.codes, err_msg=what)
        np.testing.assert_array_equal(twice.scales, once.scales, err_msg=what)


def test_float8_is_that_of_jax():
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    stored = kept("float8", x)
    largest = np.abs(x).max()
    y = x / largest * np.float32(448)
    np.testing.assert_array_equal(stored.codes, y.astype(jnp.float8_e4m3fn))
    found = stored.codes.astype(jnp.float32) * largest / 448
    np.testing.assert_allclose(load(stored), found, 1e-6)
    # Three binary digits, except for numbers below 2^-6.
    is_large = np.abs(y) > 2.0**-6
    error = np.abs(found - x) / np.abs(x)
    assert error[is_large].max() <= 2.0**-4


@ALL
@pytest.mark.costly
def test_zeros(name):
    stored = kept(name, np.zeros(100, np.float32))
    for array in (load(stored), stored.scales, load(store(stored, jnp.zeros(100)))):
        np.testing.assert_array_equal(array, 0)


@ALL
def test_denormal_numbers(name):
    """To XLA they may be zeros. They do no harm, and none becomes large."""
    x = np.full(128, 1e-40, np.float32)
    x[0] = 1  # in a block with others, they are nothing
    found = loaded(name, x)
    assert np.isfinite(found).all()
    lowest = 1 / 256 if name == "4 bits, unsigned" else 0
    assert (np.abs(found[1:64]) <= lowest).all()
    assert (np.abs(found[64:]) <= TINY).all()


@ALL
@pytest.mark.costly
def test_what_is_not_finite_stays_in_its_block(name):
    x = np.abs(np.random.default_rng(0).normal(size=4 * 64)).astype(np.float32)
    expected = loaded(name, x)
    others = [0, 2, 3]
    for bad in (np.nan, np.inf, -np.inf)[: 2 if "unsigned" in name else 3]:
        x[70] = bad
        found = loaded(name, x).reshape(4, 64)
        if np.isnan(bad):
            assert np.isnan(found[1]).all()
        else:  # the largest number, because the square of a finite number may overflow
            top = 1.0 if name != "4 bits, signed" or bad > 0 else 0.8875  # no -1
            np.testing.assert_allclose(found[1, 6], np.sign(bad) * top * LARGEST, 1e-6)
            assert np.isfinite(found[1]).all()
        np.testing.assert_array_equal(found[others], expected.reshape(4, 64)[others])
    # The next store removes it.
    again = store(kept(name, x), jnp.asarray(expected))
    assert np.isfinite(load(again)).all()


@ALL
@pytest.mark.parametrize("size", [4099, pytest.param(512 * 512, marks=SLOW)])
@pytest.mark.costly
def test_nan_fills_its_block_in_large_arrays(name, size):
    """On a CPU, XLA computes the maxima of large arrays in another way."""
    x = np.ones(size, np.float32)
    x[1000] = np.nan  # in block number 15
    expected = np.isin(np.arange(size) // 64, 15)
    for stored in (kept(name, x), store(kept(name, np.ones_like(x)), x)):
        np.testing.assert_array_equal(np.isnan(load(stored)), expected)


@ALL
@pytest.mark.parametrize(
    "size", [65, *(pytest.param(n, marks=SLOW) for n in (1, 2, 63, 64, 131))]
)
@pytest.mark.costly
def test_tails(name, size):
    x = -np.linspace(1, 2, size, dtype=np.float32)
    x = np.abs(x) if "unsigned" in name else x
    stored = kept(name, x)
    assert stored.scales.shape == (-(-size // 64),)
    whole = [np.abs(x[i : i + 64]).max() for i in range(0, size, 64)]
    np.testing.assert_array_equal(stored.scales, whole)
    count = (size + 1) // 2 if name[0] == "4" else size
    assert stored.codes.shape == (count,)
    # The last block is one like any other. XLA may round a few numbers in another way.
    start = 64 * ((size - 1) // 64)
    np.testing.assert_allclose(load(stored)[start:], loaded(name, x[start:]), 1e-6)


@ALL
@pytest.mark.parametrize(
    "shape", [(2, 1, 70), *(pytest.param(x, marks=SLOW) for x in ((), (3, 5)))]
)
@pytest.mark.slow
def test_shapes(name, shape):
    x = np.abs(np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    stored = kept(name, x)
    assert (stored.shape, stored.dtype, stored.size) == (shape, x.dtype, x.size)
    assert load(stored).shape == shape
    np.testing.assert_array_equal(load(stored).ravel(), loaded(name, x.ravel()))


def test_half_precision():
    """What stands for an array of half precision is loaded in float32."""
    stored = kept("8 bits, signed", jnp.linspace(-1, 2, 100, dtype=jnp.bfloat16))
    assert stored.dtype == jnp.bfloat16 and load(stored).dtype == jnp.float32
    new = store(stored, jnp.linspace(0, 1, 100))
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, stored)
    assert new.dtype == jnp.bfloat16


@SLOW
@pytest.mark.parametrize("name", ["8 bits, signed", "4 bits, unsigned", "float8"])
def test_float64(name, x64):
    """Scales are in float64 where arrays are, so that 1e200 is a number."""
    x = np.abs(np.random.default_rng(0).normal(size=70))
    with x64():
        stored = kept(name, 1e200 * x)
        assert stored.scales.dtype == jnp.float64 == load(stored).dtype
        np.testing.assert_allclose(load(stored) / 1e200, loaded(name, x), 1e-12)


@pytest.mark.parametrize(
    "storage", [BlockwiseQuantized(), Float8(), eqopt.storage.StochasticRounding()]
)
@pytest.mark.slow
def test_derivatives_take_what_was_stored_as_constant(storage):
    """A code has no derivative, and a scale alone would give a wrong one."""
    opt = eqopt.StoreState(
        eqopt.SGD(0.1, momentum=0.9), storage, eqopt.groups.everything
    )
    params = jnp.zeros(8)

    def after_two_steps(g):
        now, state = opt.step(g, opt.init(params), params)
        now, _ = opt.step(jnp.ones(8), state, now)
        return jnp.sum(now)

    np.testing.assert_allclose(jax.grad(after_two_steps)(jnp.arange(8.0)), -0.1)
