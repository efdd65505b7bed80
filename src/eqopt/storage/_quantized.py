"""Arrays as codes of few bits, with a scale for each block."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, Inexact, Shaped

from .._trees.sharding import on_automatic_axes, sharded_like
from .._trees.stored import AbstractStored
from ..numerics._numerics import at_least_float32
from ._blocks import Blocks, blocks_of
from ._maps import AbstractMap, FloatMap
from ._nibbles import packed, packed_on_tpu, unpacked, unpacked_on_tpu
from ._tiles import Tiles


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
