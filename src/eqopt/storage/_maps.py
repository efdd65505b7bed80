r"""Maps of the numbers in $[-1, 1]$ to codes of 8 or 4 bits, and back.

All of them are arithmetic on whole vectors. Searching a sorted table number by number
takes 5 to 60 times as long on a CPU.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


class AbstractMap(eqx.Module):
    """Codes for numbers of at most 1 in size."""

    bits: eqx.AbstractVar[int]

    @property
    def layout_name(self) -> str:
        """The name in checkpoints, which have no static fields.

        Until November 2026, codes half a block apart shared a byte.
        """
        return f"{self!r}, neighbours in a byte" if self.bits == 4 else repr(self)

    @abc.abstractmethod
    def encode(self, y: Float[Array, "..."]) -> Shaped[Array, "..."]:
        """The codes of the numbers nearest to `y`."""

    @abc.abstractmethod
    def decode(self, codes: Shaped[Array, "..."], real: type) -> Float[Array, "..."]:
        """The numbers with these codes, of the dtype `real`."""


class DynamicMap(AbstractMap):
    r"""Midpoints of $n_i = 2^i$ intervals of $[0.1, 1]$, in units of $10^{i - 2}$.

    Here $i = 0, 1, 2$. All midpoints occur with both signs. In addition, there are 0 and
    1. Codes are in the order of the numbers.

    Each decade has twice as many midpoints as the decade below. So the index of a number
    among them is a piecewise linear function with slopes that fall from decade to
    decade: the smallest of three linear functions. The inverse is the largest of three.
    """

    bits: int = eqx.field(static=True, default=4)

    @property
    def _pieces(self) -> list[tuple[int, float, int]]:
        """For each decade: $n_i$, its unit, and the number of its first midpoint."""
        return [(2**i, 10.0 ** (i - 2), 2**i) for i in range(3)]

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
        is_first = j & (j - 1) == 0
        lowest = real(0.25 - 1 / 18)
        is_below = place - j.astype(real) < jnp.where(j == 1, lowest, real(0.2))
        j -= (is_first & is_below).astype(j.dtype)
        is_top = place >= real(self._top - 0.25)
        j = jnp.minimum(j, self._top - 1)
        # The map contains 1, but not -1.
        j = jnp.where(y < 0, -j, jnp.where(is_top, self._top, j))
        return (j + (self._top - 1)).astype(jnp.uint8)

    def decode(self, codes, real):
        number = codes.astype(jnp.int32) - (self._top - 1)
        j = jnp.abs(number).astype(real)
        lines = [
            real(0.9 * unit / n) * j + real(unit * (0.1 + 0.9 * (0.5 - first) / n))
            for n, unit, first in self._pieces
        ]
        x = jnp.where(j == self._top, real(1), _fold(jnp.maximum, lines))
        return jnp.sign(number).astype(real) * x


class FourthPowerMap(AbstractMap):
    r"""The fourth powers of $k / n$, for $k = 0, …, n$, as means of intervals.

    A number is rounded to the nearest $k$ in terms of fourth roots. So the numbers with
    the code $k$ are an interval, with the middle

    $$\frac{(k + \frac12)^4 + (k - \frac12)^4}{2}
      = k^4 + \tfrac32 k^2 + \tfrac1{16}.$$

    They decode to $k^2 (k^2 + \frac32)$, divided by its value for $n$: to the middle
    without the last term, so that 0 stays 0. If the map is signed, then $n = 127$, and
    the numbers occur with both signs; otherwise, $n = 255$.
    """

    is_signed: bool = eqx.field(static=True)
    bits: int = eqx.field(static=True, default=8)

    @property
    def _largest(self) -> int:
        return 127 if self.is_signed else 255

    def encode(self, y):
        n, real = self._largest, y.dtype.type
        root = jnp.sqrt(jnp.sqrt(jnp.abs(y)))
        k = (real((n**4 + 1.5 * n**2) ** 0.25) * root + real(0.5)).astype(jnp.int32)
        if self.is_signed:
            k = jnp.where(y < 0, -k, k) + n
        return k.astype(jnp.uint8)

    def decode(self, codes, real):
        n = self._largest
        k = codes.astype(jnp.int32) - n * self.is_signed
        x = k.astype(real) * (real(1) / real(n))
        square = x * x
        with_sign = x * jnp.abs(x) if self.is_signed else square
        # The largest is exactly 1 in all dtypes, because a + b is rounded to 1.
        a, b = real(n**2 / (n**2 + 1.5)), real(1.5 / (n**2 + 1.5))
        return with_sign * (a * square + b)


class SecondPowerMap(AbstractMap):
    r"""The squares $(k / 16)^2$, $k = 1, …, 16$, without 0.

    An optimizer divides by the root of a second moment. Here, the roots are evenly
    spaced.
    """

    bits: int = eqx.field(static=True, default=4)

    def encode(self, y):
        real = y.dtype.type
        # The midpoint of two neighbours is (k + 1/2)^2 + 1/4, in units of 1 / 16^2.
        root = jnp.sqrt(jnp.maximum(y * real(256) - real(0.25), 0))
        place = jnp.floor(root + real(0.5)) - 1
        return jnp.clip(place, 0, 15).astype(jnp.uint8)

    def decode(self, codes, real):
        root = (codes.astype(real) + 1) * real(1 / 16)
        return root * root


class FloatMap(AbstractMap):
    """Floats of 8 bits with 3 bits of mantissa, up to 448."""

    bits: int = eqx.field(static=True, default=8)

    def encode(self, y):
        return (y * y.dtype.type(448)).astype(jnp.float8_e4m3fn)

    def decode(self, codes, real):
        return codes.astype(real) * real(1 / 448)


def _fold(of_two, arrays):
    first, *others = arrays
    for x in others:
        first = of_two(first, x)
    return first
