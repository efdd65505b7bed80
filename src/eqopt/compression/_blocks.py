"""Codes of 8 bits or 1 bit, and a scale for each block."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt8

from .._arguments.fields import static_choice
from .._types import StaticInteger, StaticSize
from ..numerics._numerics import max_or_nan
from ._base import AbstractCompressor, Workers


class AbstractBlocks(AbstractCompressor):
    """A compressor of blocks, in two stages, as a reduce-scatter and an all-gather.

    Each worker is responsible for a share of the array. It receives the codes of this
    share from all workers, and sends the codes of their mean to all workers. The error
    of the second stage is an error of the worker that is responsible: $K$ times, because
    the mean divides by $K$.
    """

    block_size: eqx.AbstractVar[StaticInteger]

    @abc.abstractmethod
    def _encode(
        self, x: Float[Array, "*blocks size"], counts: Int[Array, "*blocks 1"]
    ) -> tuple[UInt8[Array, "*blocks bytes"], Float[Array, "*blocks 1"]]:
        """Codes and scales. After the first `counts` elements, a block has padding."""

    @abc.abstractmethod
    def _decode(
        self, codes: UInt8[Array, "*blocks bytes"], scales: Float[Array, "*blocks 1"]
    ) -> Float[Array, "*blocks size"]: ...

    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        share = math.ceil(x.size / workers.count)
        # Eight bits are a byte.
        size = 8 * math.ceil(min(int(self.block_size), share) / 8)
        shape = (workers.count, math.ceil(share / size), size)
        padding = math.prod(shape) - x.size
        numbers = jnp.arange(math.prod(shape[:2])).reshape(*shape[:2], 1)
        counts = jnp.clip(x.size - size * numbers, 0, size)
        padded = jnp.pad(x.ravel(), (0, padding)).reshape(shape)
        codes, scales = self._encode(padded, counts)
        whole = lambda y: y.ravel()[: x.size].reshape(x.shape)
        own = self._decode(codes, scales)
        if workers.count == 1:
            return workers.mean(whole(own)), whole(own), memory
        received = self._decode(workers.exchange(codes), workers.exchange(scales))
        mean = received.mean(axis=0)
        here = lax.axis_index(workers.axis_name)
        codes, scales = self._encode(mean, counts[here])
        lost = mean - self._decode(codes, scales)
        own = own - workers.count * workers.only_here(lost)
        result = self._decode(workers.gather(codes), workers.gather(scales))
        return whole(result), whole(own), memory


class Int8Blocks(AbstractBlocks):
    r"""Integers of 8 bits, and a scale for each block of neighbouring elements.

    With the largest modulus $a$ of a block, an element $x$ is sent as the integer
    nearest to $127\,x/a$. A mean sends a quarter of the bytes of a mean in float32.

    **Arguments:**

    - `block_size`: the largest number of elements in a block, a positive integer,
        rounded up to a multiple of 8. Defaults to 256.

    **Raises:**

    A `ValueError` if `block_size` is something else.
    """

    block_size: StaticSize = static_choice(static=True, default=256)

    def _encode(self, x, counts):
        scales = max_or_nan(jnp.abs(x), axis=-1, keepdims=True) / 127
        codes = jnp.clip(jnp.round(x / _divisors(scales)), -127, 127)
        return lax.bitcast_convert_type(codes.astype(jnp.int8), jnp.uint8), scales

    def _decode(self, codes, scales):
        return lax.bitcast_convert_type(codes, jnp.int8).astype(scales.dtype) * scales


class Float8Blocks(AbstractBlocks):
    r"""Floats of 8 bits, and a scale for each block of neighbouring elements.

    With the largest modulus $a$ of a block, an element $x$ is sent as $448\,x / a$ in
    JAX's `float8_e4m3fn`. Small numbers have smaller errors than with
    [`eqopt.compression.Int8Blocks`][], and large ones have larger errors.

    **Arguments:**

    - `block_size`: as in [`eqopt.compression.Int8Blocks`][]. Defaults to 256.

    **Raises:**

    A `ValueError` if `block_size` is something else.
    """

    block_size: StaticSize = static_choice(static=True, default=256)

    def _encode(self, x, counts):
        scales = max_or_nan(jnp.abs(x), axis=-1, keepdims=True) / 448
        codes = jnp.clip(x / _divisors(scales), -448, 448).astype(jnp.float8_e4m3fn)
        return lax.bitcast_convert_type(codes, jnp.uint8), scales

    def _decode(self, codes, scales):
        codes = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
        return codes.astype(scales.dtype) * scales


class Sign(AbstractBlocks):
    """One bit for each element, its sign, and a scale for each block: a majority vote.

    The scale is the mean modulus of a block. The mean of all signs, weighted by these
    scales, is sent in the same form: the sign of the majority. A mean sends some
    1/31 of the bytes of a mean in float32.

    **Arguments:**

    - `block_size`: as in [`eqopt.compression.Int8Blocks`][]. Defaults to 1024.

    **Raises:**

    A `ValueError` if `block_size` is something else.

    ??? cite "References"

        ```bibtex
        @inproceedings{karimireddy2019error,
            author = {Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian
                      U. and Jaggi, Martin},
            title = {Error Feedback Fixes {SignSGD} and other Gradient Compression
                     Schemes},
            booktitle = {International Conference on Machine Learning},
            year = {2019},
        }

        @inproceedings{bernstein2019majority,
            author = {Bernstein, Jeremy and Zhao, Jiawei and Azizzadenesheli, Kamyar and
                      Anandkumar, Anima},
            title = {{signSGD} with Majority Vote is Communication Efficient and Fault
                     Tolerant},
            booktitle = {International Conference on Learning Representations},
            year = {2019},
        }
        ```
    """

    block_size: StaticSize = static_choice(static=True, default=1024)

    def _encode(self, x, counts):
        # In a mean of signs, padding is not zero.
        places = lax.broadcasted_iota(counts.dtype, x.shape, x.ndim - 1)
        sizes = jnp.where(places < counts, jnp.abs(x), 0)
        scales = jnp.sum(sizes, axis=-1, keepdims=True)
        scales = scales / jnp.maximum(counts, 1).astype(x.dtype)
        return jnp.packbits(x >= 0, axis=-1), scales

    def _decode(self, codes, scales):
        bits = jnp.unpackbits(codes, axis=-1)
        return jnp.where(bits == 1, scales, -scales)


def _divisors(scales: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(scales == 0, 1, scales)
