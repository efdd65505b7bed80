"""The codes of numbers against the edges of their cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .books import BOOKS, in_cell, largest_error


NAMES = pytest.mark.parametrize("name", BOOKS)


def around(numbers, count=12):
    """The floats next to each of `numbers`."""
    words = np.float32(numbers).view(np.int32)[:, None] + np.arange(-count, count + 1)
    return words.astype(np.int32).view(np.float32).ravel()


def numbers(book, count=3000):
    """Numbers of all sizes, near the edges of the codes' cells, and special values."""
    rng = np.random.default_rng(0)
    small, sign = 10 ** rng.uniform(-9, 0, count), rng.choice([-1, 1], count)
    special = [0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, 1e-30, 1e-7]
    all_of = np.concatenate(
        [
            around(book.edges),
            rng.uniform(-1, 1, count),
            small * sign,
            around([0.5, 0.1]),
            special,
        ]
    ).astype(np.float32)
    all_of = all_of if book.lowest else np.abs(all_of)
    return all_of[np.abs(all_of) <= 1]


@pytest.mark.parametrize("name", ["8 bits, signed", "8 bits, unsigned"])
def test_numbers_are_the_middles_of_their_cells(name):
    """So rounding is right on average, for numbers that are spread evenly in a cell."""
    book = BOOKS[name]
    middles = (book.edges[1:] + book.edges[:-1]) / 2
    error = np.abs(middles - book.numbers[1:-1])
    assert (error <= 0.026 * np.abs(middles)).all()
    # After the smallest ones, far less than what changes in a step.
    is_tenth = np.abs(middles) > 1e-5
    assert (error <= 1e-4 * np.abs(middles))[is_tenth].all()


@pytest.mark.slow
def test_book_of_torchao():
    """The other ones are our own."""
    pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.optim.quant_utils")
    theirs = utils.create_dynamic_map(True, 3, 4)
    np.testing.assert_allclose(BOOKS["4 bits, signed"].numbers, theirs, 1e-6, 0)


@NAMES
def test_decodes_to_the_book(name):
    map, expected, _ = BOOKS[name]
    found = map.decode(jnp.arange(len(expected), dtype=jnp.uint8), jnp.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, 1e-6, 0)
    # Ends and zero, with which blocks are scaled and begin, are exact.
    np.testing.assert_array_equal(found[-1], 1)
    np.testing.assert_array_equal(np.asarray(found)[expected == 0], 0)


@NAMES
@pytest.mark.costly
def test_encodes_to_its_cell(name):
    book = BOOKS[name]
    y = numbers(book)
    codes = np.asarray(jax.jit(book.map.encode)(jnp.asarray(y)))
    assert in_cell(book, y, codes).all()
    # So decoding is at most as far away as an edge of the cell.
    found = np.asarray(book.map.decode(jnp.asarray(codes), jnp.float32), np.float64)
    assert (np.abs(found - y) <= largest_error(book, codes) + 1.2e-6 * np.abs(y)).all()
    # All codes are used.
    assert len(np.unique(codes)) == len(book.numbers)


@pytest.mark.slow
@NAMES
def test_encodes_to_its_cell_when_optimized(name, all_optimizations):
    test_encodes_to_its_cell(name)


@pytest.mark.slow
@NAMES
def test_float64(name, x64):
    book = BOOKS[name]
    with x64():
        codes = jnp.arange(len(book.numbers), dtype=jnp.uint8)
        found = book.map.decode(codes, jnp.float64)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, book.numbers, 1e-13, 1e-19)
        np.testing.assert_array_equal(book.map.encode(found), codes)
        y = numbers(book).astype(np.float64)
        assert in_cell(book, y, book.map.encode(jnp.asarray(y))).all()
