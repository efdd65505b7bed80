"""The code books by their definitions, in NumPy's float64."""

from typing import NamedTuple

import numpy as np

from eqopt.storage._maps import AbstractMap, DynamicMap, FourthPowerMap, SecondPowerMap


class Book(NamedTuple):
    """A map, its numbers in the order of the codes, and the edges between their cells."""

    map: AbstractMap
    numbers: np.ndarray
    edges: np.ndarray

    @property
    def lowest(self):
        return -1 if self.numbers[0] < 0 else 0


def of_nearest(map, numbers):
    """Each number has the code of the nearest one."""
    return Book(map, numbers, (numbers[1:] + numbers[:-1]) / 2)


def dynamic_numbers():
    """Dettmers et al. (2022): a decade for each number of leading zeros.

    In the decade of which the exponent takes one bit more, there are half as many
    fractions; each is the middle of its part of the decade.
    """
    numbers = [0.0, 1.0]
    for zeros in range(3):
        parts = np.linspace(0.1, 1, 2 ** (2 - zeros) + 1)
        means = 10.0**-zeros * (parts[:-1] + parts[1:]) / 2
        numbers += [*means, *-means]
    return np.sort(numbers)


def of_fourth_powers(is_signed):
    """Each number has the code of the nearest fourth root."""
    n = 127 if is_signed else 255
    k = np.arange(n + 1.0)
    unit = n**2 * (n**2 + 1.5)
    numbers, edges = k**2 * (k**2 + 1.5) / unit, (k[:-1] + 0.5) ** 4 / unit
    if is_signed:
        numbers = np.concatenate([-numbers[:0:-1], numbers])
        edges = np.concatenate([-edges[::-1], edges])
    return Book(FourthPowerMap(is_signed), numbers, edges)


BOOKS = {
    "8 bits, signed": of_fourth_powers(True),
    "8 bits, unsigned": of_fourth_powers(False),
    "4 bits, signed": of_nearest(DynamicMap(), dynamic_numbers()),
    "4 bits, unsigned": of_nearest(SecondPowerMap(), (np.arange(1, 17) / 16) ** 2),
}


def in_cell(book, y, codes):
    """Whether `y` is in the cell of each code.

    Up to 10 floats beyond an edge are allowed: a place among 256 numbers, in float32, has
    16 binary digits behind the point.
    """
    wide = np.asarray(y, np.float64)
    low, high = sides(book, np.asarray(codes))
    slack = 10 * np.spacing(np.abs(y)).astype(np.float64)
    return (low - slack <= wide) & (wide <= high + slack)


def sides(book, codes):
    """The edges of the cells of these codes, from -1 or 0 to 1."""
    edges = np.concatenate([[book.lowest], book.edges, [1]])
    return edges[:-1][codes], edges[1:][codes]


def largest_error(book, codes):
    """The distance from the number with each code to the further edge of its cell."""
    low, high = sides(book, codes)
    numbers = book.numbers[codes]
    return np.maximum(numbers - low, high - numbers)
