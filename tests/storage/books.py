"""The code books of the papers, by their definitions, in NumPy's float64."""

import numpy as np

from eqopt.storage._maps import DynamicMap, SquareMap


def dynamic_book(bits, is_signed):
    """Dettmers et al. (2022): a decade for each number of leading zeros.

    In the decade of which the exponent takes one bit more, there are half as many
    fractions; each stands in the middle of its part of the decade.
    """
    book = [0.0, 1.0]
    for zeros in range(bits - 1):
        fraction_bits = bits - 2 - zeros + (not is_signed)
        edges = np.linspace(0.1, 1, 2**fraction_bits + 1)
        means = 10.0**-zeros * (edges[:-1] + edges[1:]) / 2
        book += [*means, *(-means if is_signed else [])]
    return np.sort(book)


# Of each map of `BlockwiseQuantized`: it, and its numbers in the order of the codes.
BOOKS = {
    "8 bits, signed": (DynamicMap(8, True), dynamic_book(8, True)),
    "8 bits, unsigned": (DynamicMap(8, False), dynamic_book(8, False)),
    "4 bits, signed": (DynamicMap(4, True), dynamic_book(4, True)),
    "4 bits, unsigned": (SquareMap(4), (np.arange(1, 17) / 16) ** 2),
}


def nearest(book, y, code):
    """Whether the number with each code is the nearest to `y`.

    Or `y` is in the middle of two neighbours, up to 10 of the floats next to it: a place
    among 256 numbers, in float32, has 16 binary digits behind the point.
    """
    wide, code = np.asarray(y, np.float64), np.asarray(code, np.int64)
    distances = np.abs(wide[:, None] - book)
    best, rows = distances.argmin(1), np.arange(len(wide))
    further = distances[rows, code] - distances[rows, best]
    is_neighbour = np.abs(code - best) <= 1
    # To be x beyond the middle is to be further from one side, and nearer to the other.
    return is_neighbour & (further <= 2 * 10 * np.spacing(np.abs(y)).astype(np.float64))


def half_gap(book, y):
    """Half of what is between the two numbers around `y`, or what is left at an end."""
    above = np.searchsorted(book, np.asarray(y, np.float64)).clip(0, len(book) - 1)
    lowest = -1 if book[0] < 0 else 0
    gaps = np.diff(book, prepend=book[0] - 2 * (book[0] - lowest))
    return gaps[above] / 2
