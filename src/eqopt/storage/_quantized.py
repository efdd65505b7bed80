"""Arrays as codes of few bits, with a scale for each block."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, Inexact, Shaped

from .._arguments.fields import static_choice
from .._trees.sharding import on_automatic_axes, sharded_like
from .._trees.stored import AbstractStored
from .._types import StaticSize
from ..numerics._numerics import at_least_float32
from ._base import AbstractStateStorage, Slot
from ._blocks import Blocks, Tiles, blocks_of
from ._maps import (
    AbstractMap,
    DynamicMap,
    FloatMap,
    FourthPowerMap,
    SecondPowerMap,
    packed,
    packed_on_tpu,
    unpacked,
    unpacked_on_tpu,
)


class Quantized(AbstractStored):
    r"""An array as codes $c$ and the largest modulus $a$ of each block: $x = a\,m(c)$.

    Both have the array's axes, except that the axes of a row are merged into one.
    """

    codes: Shaped[Array, "... codes"]
    scales: Float[Array, "... blocks"]
    map: AbstractMap
    blocks: Blocks | Tiles

    _is_differentiable = False

    @property
    def _made_by(self):
        is_float = isinstance(self.map, FloatMap)
        return "Float8" if is_float else f"BlockwiseQuantized(bits={self.map.bits})"

    @property
    def _is_measured(self):
        # A row with an odd number of codes ends in half a byte. XLA for a GPU fills it up
        # in another kernel, so a second pass would save nothing.
        return not (self._are_packed and self.blocks.length % 2)

    @property
    def _are_packed(self):
        """Whether two codes share a byte, as in a state.

        For the two passes over a leaf, each code of 4 bits is a `uint4`.
        """
        return self.map.bits == 4 and self.codes.dtype == jnp.uint8

    @property
    def _form(self):
        """What the arrays mean: the first arguments of `_loaded` and `_codes`."""
        return self.map, self.blocks, self._are_packed

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.blocks.shape, self.blocks.dtype)

    def load(self):
        fn = functools.partial(_loaded, *self._form)
        leaf = P(*_spec(self.codes)[: self.ndim])  # divided like its codes
        return _automatically(fn, self.codes, self.scales, specs=leaf)

    def store(self, new):
        return self.store_measured(new, self.measure(new))

    def measure(self, new):
        """The scales of `new`."""
        fn = functools.partial(_scales, self.blocks)
        return _automatically(fn, self._real(new), specs=_spec(self.scales))

    def store_measured(self, new, scales):
        fn = functools.partial(_codes, *self._form)
        specs = _spec(self.codes)
        codes = _automatically(fn, self._real(new), scales, specs=specs)
        return Quantized(codes, scales, self.map, self.blocks)

    def in_blocks(self, blocks):
        """The same, as if the array had the shape and the order of `blocks`.

        Codes that share a byte are taken apart for that, and put together again when they
        return.
        """
        in_tiles = Tiles in (type(self.blocks), type(blocks))
        codes = self.codes
        if self._are_packed:
            codes = unpacked_on_tpu(codes) if in_tiles else unpacked(codes)
            codes = codes[..., : self.blocks.length].astype(jnp.uint4)
        codes = self.blocks.natural(codes.reshape(self.blocks.shape))
        codes = blocks.arranged(codes).reshape(*blocks.rows, -1)
        if self.codes.dtype == jnp.uint4:
            codes = packed_on_tpu(codes) if in_tiles else packed(codes)
        scales = self.scales.reshape(blocks.shape_of_scales)
        return Quantized(codes, scales, self.map, blocks)

    def _real(self, new):
        return new.astype(self.scales.dtype)


def _loaded(map, blocks, are_packed, codes, scales):
    if are_packed:
        codes = unpacked(codes)[..., : blocks.length]
    y = map.decode(blocks.cut(codes), scales.dtype.type)
    return (y * blocks.spread(scales)).reshape(blocks.shape)


def _scales(blocks, x):
    # An infinity is often the square of one huge gradient. With an infinite scale, all of
    # its block would become NaN. To bound the scales, a GPU would need another kernel.
    return blocks.largest(jnp.abs(blocks.cut(x)), float(jnp.finfo(x.dtype).max))


def _codes(map, blocks, are_packed, x, scales):
    rows, x = x.reshape(*blocks.rows, -1), blocks.cut(x)
    # For the largest numbers, 1 / scale would be flushed to zero. The sign of the inverse
    # says so, because a TPU spreads one value faster than two.
    unit = jnp.where(scales > 1, scales.dtype.type(-0.25), 1)
    inverse = blocks.spread(1 / jnp.where(scales == 0, 1, scales * unit))
    y = x * jnp.where(inverse < 0, scales.dtype.type(0.25), 1) * jnp.abs(inverse)
    y = lax.clamp(y.dtype.type(-1), y, y.dtype.type(1))  # because of infinities
    # Otherwise, XLA may replicate codes if a block is on two devices.
    y = sharded_like(rows, y.reshape(rows.shape))
    codes = map.encode(y)
    if are_packed:
        return packed(codes)
    return codes.astype(jnp.uint4) if map.bits == 4 else codes


def _automatically(fn, *arrays, specs):
    """`fn(*arrays)`; on a mesh with explicit axes, its results have these specs."""
    mesh = jax.typeof(arrays[0]).sharding.mesh
    if not mesh.explicit_axes:
        return fn(*arrays)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return on_automatic_axes(fn, *arrays, shardings=shardings)


def _spec(x):
    return jax.typeof(x).sharding.spec


def quantized(x: Inexact[Array, "..."], map: AbstractMap, size: int) -> Quantized:
    """`x` as codes of `map`, with a scale for at most `size` elements."""
    blocks = blocks_of(x, size)
    new = _made(at_least_float32(x), map, blocks)
    place = lambda y: blocks.placed(y, x)
    return Quantized(place(new.codes), place(new.scales), map, blocks)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _made(x, map, blocks):
    def codes_and_scales(x):
        scales = _scales(blocks, x)
        return _codes(map, blocks, map.bits == 4, x, scales), scales

    shapes = jax.eval_shape(codes_and_scales, jax.ShapeDtypeStruct(x.shape, x.dtype))
    specs = tuple(blocks.spec(y, x) for y in shapes)
    codes, scales = _automatically(codes_and_scales, x, specs=specs)
    return Quantized(codes, scales, map, blocks)


class BlockwiseQuantized(AbstractStateStorage):
    r"""Codes of 8 or 4 bits, and a scale for each block of neighbouring elements.

    The scale $a$ of a block is its largest modulus, in float32. Infinity counts as the
    largest number, and NaN makes all of its block NaN. For each element $x$, the code of
    a number close to $x / a$ is stored, among 256 or 16:

    - 8 bits: the nearest $k$ to $n \sqrt[4]{|x| / a}$, with the sign of $x$, where
        $n = 127$, or 255 for slots that are never negative. It stands for
        $k^2 (k^2 + \frac32)$ in units in which $n$ stands for 1, which is the middle
        of all numbers with this code. Numbers above $a / 10^4$ keep a relative error
        of at most 20 %, and numbers above $a / 10$ of at most 3 % (10 % and 1.5 %
        without a sign).
    - 4 bits: the nearest number in the *dynamic* map, which has midpoints of $2^i$ equal
        intervals in the decade $10^{i-3} … 10^{i-2}$, $i = 0, 1, 2$, with both signs,
        and 0 and 1. Slots that are never negative use the squares
        $(1/16)^2, (2/16)^2, …, 1$ instead, because optimizers divide by the root: it is
        never 0, and evenly spaced.

    Blocks follow from the shape of an array alone, so the same state is stored in the
    same way on any number of devices. A row of the array is divided into equal blocks
    of more than half of `block_size` elements, and as many of them as possible can be
    shared out evenly over 2, 4, 8, … devices. If its size has no such divisor, the last
    block is smaller. A row is the last axis; axes before it are included if it is
    shorter than half of `block_size`. Codes and scales have the axes of the array, with
    the axes of a row merged into one, and are sharded like the array. Two neighbouring
    codes of 4 bits share a byte: the first one is in its low 4 bits.

    8 bits are enough for the moments of every optimizer. 4 bits are enough for optimizers
    that work element by element, such as AdamW and Lion. They are not enough for Muon and
    other optimizers that orthogonalize, because a small error of the momentum becomes a
    large error of the direction. Averages of the parameters and slow weights stand still
    in 8 bits, because their steps are smaller than the distance of two codes. Put them
    outside: `ParamEMA(StoreState(opt, storage))`.

    Parameters are not affected by rounding in the current step: the optimizer uses its
    computed values, and rounds them only for the next step. (Derivatives through
    several steps treat stored values as constants.) With 8 bits, the state of AdamW
    takes 2.03 bytes per parameter instead of 8; with 4 bits, 1.06.

    !!! example

        ```python
        storage = eqopt.storage.BlockwiseQuantized()
        opt = eqopt.StoreState(eqopt.AdamW(1e-3), storage)
        ```

    **Arguments:**

    - `bits`: 8 or 4. Defaults to 8.
    - `block_size`: the largest number of elements in a block, a positive integer.
        Defaults to 256 for 8 bits, and to 128 for 4 bits.

    **Raises:**

    A `ValueError` if `bits` or `block_size` is something else.

    ??? cite "References"

        ```bibtex
        @inproceedings{dettmers2022optimizers,
            author = {Dettmers, Tim and Lewis, Mike and Shleifer, Sam and Zettlemoyer,
                      Luke},
            title = {8-bit Optimizers via Block-wise Quantization},
            booktitle = {International Conference on Learning Representations},
            year = {2022},
        }

        @inproceedings{li2023memory,
            author = {Li, Bingrui and Chen, Jianfei and Zhu, Jun},
            title = {Memory Efficient Optimizers with 4-bit States},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```

        The 8-bit map differs from the one in the first paper, which has seven decades
        with equal intervals. Fourth roots are closer to float32 (on scanned digits,
        the final loss of AdamW differs from float32 by less than 1 % for each of three
        seeds, instead of 2 to 8 %), and a GPU computes them in half the time. Rounding
        after a root is also in:

        ```bibtex
        @article{ortiz2026flashoptim,
            title = {FlashOptim: Optimizers for Memory Efficient Training},
            journal = {arXiv:2602.23349},
            year = {2026},
        }
        ```

        The signed 4-bit map is the same as in `torchao.optim`. For second moments, that
        library uses $1/16, 2/16, …, 1$. With it, AdamW ends 12 % above the loss of
        float32 on scanned digits, instead of 2 %.
    """

    bits: Literal[8, 4] = static_choice(static=True, default=8)
    block_size: StaticSize | None = static_choice(static=True, default=None)

    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> Quantized:
        return quantized(x, self._map(slot.nonnegative), self._size)

    def _map(self, is_nonnegative: bool) -> AbstractMap:
        if self.bits == 8:
            return FourthPowerMap(is_signed=not is_nonnegative)
        return SecondPowerMap() if is_nonnegative else DynamicMap()

    @property
    def _size(self) -> int:
        return int(self.block_size or (256 if self.bits == 8 else 128))

    def _may_have_kept(self, x: AbstractStored) -> bool:
        maps = [self._map(True), self._map(False)]
        return _is_of(x, maps, self._size)


class Float8(AbstractStateStorage):
    r"""Floats of 8 bits, and a scale for each block of neighbouring elements.

    With the largest modulus $a$ of a block, an element $x$ is stored as $448\,x / a$ in
    JAX's `float8_e4m3fn`, which has 3 binary digits and reaches down to $a / 230\,000$.
    Smaller numbers become zero. [`eqopt.storage.BlockwiseQuantized`][] has twice the
    digits near $a$, and reaches further down. Some accelerators convert these floats in
    one instruction. Derivatives through several steps treat stored values as constants.

    **Arguments:**

    - `block_size`: the largest number of elements in a block, a positive integer, as in
        [`eqopt.storage.BlockwiseQuantized`][]. Defaults to 256.

    **Raises:**

    A `ValueError` if `block_size` is something else.
    """

    block_size: StaticSize = static_choice(static=True, default=256)

    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> Quantized:
        return quantized(x, FloatMap(), int(self.block_size))

    def _may_have_kept(self, x: AbstractStored) -> bool:
        return _is_of(x, [FloatMap()], int(self.block_size))


def _is_of(x: AbstractStored, maps: list[AbstractMap], size: int) -> bool:
    """Whether `x` is the result of `quantized` with one of these maps, and this size."""
    if not isinstance(x, Quantized) or x.map not in maps:
        return False
    like: Any = x.like
    return x.blocks == blocks_of(like, size)
