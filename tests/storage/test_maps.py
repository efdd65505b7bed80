"""The codes of numbers against a code book that is searched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .books import BOOKS, dynamic_book, half_gap, nearest


NAMES = pytest.mark.parametrize("name", BOOKS)


def around(numbers, count=12):
    """The floats next to each of `numbers`."""
    words = np.float32(numbers).view(np.int32)[:, None] + np.arange(-count, count + 1)
    return words.astype(np.int32).view(np.float32).ravel()


def numbers(book, count=3000):
    """Of all sizes, close to where a code begins or ends, and special ones."""
    rng = np.random.default_rng(0)
    middles = around((book[1:] + book[:-1]) / 2)
    small, sign = 10 ** rng.uniform(-9, 0, count), rng.choice([-1, 1], count)
    special = [0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, 1e-30, 1e-7]
    all_of = np.concatenate(
        [middles, rng.uniform(-1, 1, count), small * sign, around([0.5, 0.1]), special]
    ).astype(np.float32)
    all_of = np.abs(all_of) if book[0] >= 0 else all_of
    return all_of[np.abs(all_of) <= 1]


def test_the_book_is_that_of_the_paper():
    signed, unsigned = dynamic_book(8, True), dynamic_book(8, False)
    assert len(signed) == len(unsigned) == 256
    assert len(dynamic_book(4, True)) == 16
    np.testing.assert_allclose(signed[0], -0.99296875)
    np.testing.assert_allclose(signed[[127, 128, 254, 255]], [0, 5.5e-7, 0.99296875, 1])
    np.testing.assert_allclose(unsigned[:3], [0, 3.25e-7, 7.75e-7])
    assert not (signed == -1).any()


@NAMES
def test_decodes_to_the_book(name):
    map, book = BOOKS[name]
    found = map.decode(jnp.arange(len(book), dtype=jnp.uint8), jnp.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, book, 1e-6, 0)
    # Ends and zero, with which blocks are scaled and begin, are exact.
    np.testing.assert_array_equal(found[-1], 1)
    np.testing.assert_array_equal(np.asarray(found)[book == 0], 0)


@NAMES
@pytest.mark.slow
def test_codes_come_back(name):
    map, book = BOOKS[name]
    codes = jnp.arange(len(book), dtype=jnp.uint8)
    found = map.encode(map.decode(codes, jnp.float32))
    assert found.dtype == codes.dtype
    np.testing.assert_array_equal(found, codes)


@NAMES
@pytest.mark.costly
def test_encodes_to_the_nearest(name):
    map, book = BOOKS[name]
    y = numbers(book)
    codes = np.asarray(jax.jit(map.encode)(jnp.asarray(y)))
    assert nearest(book, y, codes).all()
    # And so the way back is at most half a gap away.
    found = np.asarray(map.decode(jnp.asarray(codes), jnp.float32), np.float64)
    gap = half_gap(book, y)
    assert (np.abs(found - y) <= gap + 1.2e-6 * np.abs(y)).all()
    # No code is left out.
    assert len(np.unique(codes)) == len(book)


@pytest.mark.slow
@NAMES
def test_encodes_to_the_nearest_when_optimized(name, all_optimizations):
    test_encodes_to_the_nearest(name)


@pytest.mark.slow
@NAMES
def test_float64(name, x64):
    map, book = BOOKS[name]
    with x64():
        codes = jnp.arange(len(book), dtype=jnp.uint8)
        found = map.decode(codes, jnp.float64)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, book, 1e-13, 1e-19)
        np.testing.assert_array_equal(map.encode(found), codes)
        y = numbers(book).astype(np.float64)
        codes = map.encode(jnp.asarray(y))
        assert nearest(book, y, codes).all()
