r"""Maps of the numbers in $[-1, 1]$ to codes of 8 or 4 bits, and back.

All of them are arithmetic on whole vectors. Searching a sorted table number by number
takes 5 to 60 times as long on a CPU.
"""

import abc
import functools
from typing import TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped, UInt4, UInt8


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
        place = functools.reduce(jnp.minimum, lines)
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
        x = jnp.where(j == self._top, real(1), functools.reduce(jnp.maximum, lines))
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


#
# Codes of 4 bits: two neighbours share a byte, the first one in its low 4 bits.
#


Bytes: TypeAlias = UInt8[Array, "... bytes"]


def packed(codes: UInt8[Array, "... n"] | UInt4[Array, "... n"]) -> Bytes:
    """The codes in bytes. If their number is odd, a zero is added."""
    if codes.shape[-1] % 2:
        codes = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return lax.platform_dependent(pairs, cuda=_joined_on_gpu, default=_joined)


def unpacked(codes: Bytes) -> UInt8[Array, "... n"]:
    """The inverse of `packed`. If the number of codes was odd, it returns one more."""
    pairs = lax.platform_dependent(codes, cuda=_separated_on_gpu, default=_separated)
    return pairs.reshape(*codes.shape[:-1], -1)


# This is how a GPU keeps `uint4` in memory, so the conversion moves nothing. Codes then
# have the shape of the parameters, and one kernel stores both.


def _joined_on_gpu(pairs):
    return lax.bitcast_convert_type(pairs.astype(jnp.uint4), jnp.uint8)


def _separated_on_gpu(codes):
    return lax.bitcast_convert_type(codes, jnp.uint4).astype(jnp.uint8)


def _joined(pairs):
    # XLA for a CPU computes each code once. In `first | second << 4`, it would compute
    # both of them twice.
    pairs = pairs.astype(jnp.uint8) << _shifts(pairs.ndim)
    return jnp.sum(pairs, axis=-1, dtype=jnp.uint8)


def _separated(codes):
    return codes[..., None] >> _shifts(codes.ndim + 1) & 15


def _shifts(ndim):
    return np.array([0, 4], np.uint8).reshape(*[1] * (ndim - 1), 2)


# On a TPU, neighbours of a row are in one vector, in which the matrix unit can move them.
# Without a product, XLA copies whole arrays to another order and back. Without the
# barriers, it copies gradients and parameters to the order of the products.


def packed_on_tpu(codes: UInt4[Array, "... n"]) -> Bytes:
    """The same as `packed`, for a multiple of 128 codes."""
    first_and_second = np.tile([[1], [16]], (64, 1))
    both = _products(lax.optimization_barrier(codes), _PAIRS.T * first_and_second)
    return both.astype(jnp.uint8).reshape(*codes.shape[:-1], -1)


def unpacked_on_tpu(codes: Bytes) -> UInt4[Array, "... n"]:
    """The same as `unpacked`, for a multiple of 64 bytes."""
    twice = _products(codes, _PAIRS)
    is_second = lax.broadcasted_iota(jnp.int32, twice.shape, twice.ndim - 1) % 2 == 1
    each = jnp.where(is_second, twice >> 4, twice & 15).astype(jnp.uint4)
    return lax.optimization_barrier(each.reshape(*codes.shape[:-1], -1))


# Row i has ones in the columns 2 i and 2 i + 1. A product copies byte i to both; with the
# transpose, it adds two neighbours.
_PAIRS = np.repeat(np.eye(64), 2, axis=1)


def _products(x, matrix):
    """Parts of each row of `x`, times `matrix`.

    All numbers are integers below 256, which bfloat16 represents exactly.
    """
    parts = x.reshape(*x.shape[:-1], -1, len(matrix)).astype(jnp.bfloat16)
    matrix = jnp.asarray(matrix, jnp.bfloat16)
    y = jnp.matmul(parts, matrix, preferred_element_type=jnp.float32)
    return y.astype(jnp.int32)
