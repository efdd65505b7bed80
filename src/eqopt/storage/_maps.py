r"""Maps of the numbers in $[-1, 1]$ to codes of 8 or 4 bits, and back.

The *dynamic* map has midpoints of equal intervals in each decade, twice as many as in
the decade below. So the index of a number among the midpoints is a piecewise linear
function with slopes that fall from decade to decade: the smallest of a few linear
functions. The inverse is the largest of a few. Both are arithmetic on whole vectors.
Searching a sorted table number by number takes 5 to 60 times as long on a CPU.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped


class AbstractMap(eqx.Module):
    """Codes for numbers of at most 1 in size."""

    bits: eqx.AbstractVar[int]

    @property
    def layout_name(self) -> str:
        """The name in checkpoints, which have no static fields."""
        return repr(self)

    @abc.abstractmethod
    def encode(self, y: Float[Array, "..."]) -> Shaped[Array, "..."]:
        """The codes of the numbers nearest to `y`."""

    @abc.abstractmethod
    def decode(self, codes: Shaped[Array, "..."], real: type) -> Float[Array, "..."]:
        """The numbers with these codes, of the dtype `real`."""


class DynamicMap(AbstractMap):
    r"""Midpoints of $n_i$ intervals of $[0.1, 1]$, in units of $10^{i - d + 1}$.

    Here $i = 0, …, d - 1$ for $d$ decades, where $d$ is the number of bits minus one.
    In addition to these midpoints, there are 0 and 1. If the map is signed, then
    $n_i = 2^i$, and all midpoints occur with both signs; otherwise, $n_i = 2^{i + 1}$.
    Codes are in the order of the numbers.
    """

    bits: int = eqx.field(static=True)
    is_signed: bool = eqx.field(static=True)

    @property
    def _pieces(self) -> list[tuple[int, float, int]]:
        """For each decade: $n_i$, its unit, and the number of its first midpoint."""
        double, decades = 1 if self.is_signed else 2, self.bits - 1
        return [
            (double * 2**i, 10.0 ** (i - decades + 1), double * (2**i - 1) + 1)
            for i in range(decades)
        ]

    @property
    def _top(self) -> int:
        """The number of 1, which follows the number of the last midpoint."""
        n, _, first = self._pieces[-1]
        return first + n

    def encode(self, y):
        real = y.dtype.type
        x = jnp.abs(y)
        lines = [
            real(n / (0.9 * unit)) * x + real(first - n / 9)
            for n, unit, first in self._pieces
        ]
        place = _fold(jnp.minimum, lines)
        j = place.astype(jnp.int32)
        # Midpoint j is nearest in [j, j + 1), except for the first of a decade: the
        # intervals of the decade below are a fifth as wide, so the boundary to its last
        # midpoint is one such interval higher. Below the very first midpoint is 0.
        is_first = (m := j + (1 - self.is_signed)) & (m - 1) == 0
        lowest = real(0.25 - self._pieces[0][0] / 18)
        is_below = place - j.astype(real) < jnp.where(j == 1, lowest, real(0.2))
        j -= (is_first & is_below).astype(j.dtype)
        is_top = place >= real(self._top - 0.25)
        if not self.is_signed:
            return jnp.where(is_top, self._top, j).astype(jnp.uint8)
        j = jnp.minimum(j, self._top - 1)
        # The map contains 1, but not -1.
        j = jnp.where(y < 0, -j, jnp.where(is_top, self._top, j))
        return (j + (self._top - 1)).astype(jnp.uint8)

    def decode(self, codes, real):
        number = codes.astype(jnp.int32) - (self._top - 1) * self.is_signed
        j = jnp.abs(number).astype(real)
        lines = [
            real(0.9 * unit / n) * j + real(unit * (0.1 + 0.9 * (0.5 - first) / n))
            for n, unit, first in self._pieces
        ]
        x = jnp.where(j == self._top, real(1), _fold(jnp.maximum, lines))
        return jnp.sign(number).astype(real) * x


class SquareMap(AbstractMap):
    r"""The squares $(k / n)^2$ of $n = 2^b$ roots, $k = 1, …, n$, without 0.

    An optimizer divides by the root of a second moment. Here, the roots are evenly
    spaced.
    """

    bits: int = eqx.field(static=True)

    def encode(self, y):
        size, real = 2**self.bits, y.dtype.type
        # The midpoint of two neighbours is (k + 1/2)^2 + 1/4, in units of 1 / n^2.
        root = jnp.sqrt(jnp.maximum(y * real(size**2) - real(0.25), 0))
        place = jnp.floor(root + real(0.5)) - 1
        return jnp.clip(place, 0, size - 1).astype(jnp.uint8)

    def decode(self, codes, real):
        root = (codes.astype(real) + 1) * real(1 / 2**self.bits)
        return root * root


class FloatMap(AbstractMap):
    """Floats of 8 bits with 3 bits of mantissa, up to 448."""

    bits: int = eqx.field(static=True, default=8)

    def encode(self, y):
        return (y * y.dtype.type(448)).astype(jnp.float8_e4m3fn)

    def decode(self, codes, real):
        return codes.astype(real) * real(1 / 448)


def packed(codes, bits):
    """Two neighbouring codes of 4 bits in a byte."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return pairs[..., 0] << 4 | pairs[..., 1]


def unpacked(codes, bits):
    """The inverse of `packed`; it may return one code more."""
    if bits == 8:
        return codes
    pairs = jnp.broadcast_to(codes[..., None], (*codes.shape, 2))
    pairs = pairs.reshape(*codes.shape[:-1], -1)
    place = lax.broadcasted_iota(jnp.int32, pairs.shape, pairs.ndim - 1)
    return jnp.where(place % 2 == 0, pairs >> 4, pairs & 15)


def _fold(of_two, arrays):
    first, *others = arrays
    for x in others:
        first = of_two(first, x)
    return first
