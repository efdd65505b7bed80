"""Blocks of 8 or 4 bits, or of floats of 8 bits, each with a scale."""

from typing import Any, Literal

from jaxtyping import Array, Inexact

from .._arguments.fields import static_choice
from .._trees.stored import AbstractStored
from .._types import StaticSize
from ._base import AbstractStateStorage, Slot
from ._blocks import blocks_of
from ._maps import AbstractMap, DynamicMap, FloatMap, FourthPowerMap, SecondPowerMap
from ._quantized import Quantized, quantized


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
