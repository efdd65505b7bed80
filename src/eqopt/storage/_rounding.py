"""Arrays in another dtype, rounded, with or without a place for the rest."""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, DTypeLike, Inexact, UInt8, UInt16, UInt32

from .._arguments.checks import check_real_dtype
from .._arguments.fields import static_choice
from .._errors import InputError
from .._platforms import compute_once
from .._trees.keys import as_key
from .._trees.sharding import sharded_like
from .._trees.stored import AbstractHidden, AbstractStored, Joined
from .._types import Key
from ..numerics._numerics import common_dtype
from ._base import AbstractParamStorage, AbstractStateStorage, Slot


class Rounded(AbstractStored):
    """An array that is stored in another dtype."""

    rounded: Inexact[Array, "..."]
    full_dtype: Any = eqx.field(static=True)

    _made_by = "Cast"

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.rounded.shape, self.full_dtype)

    def load(self):
        return self.rounded

    def store(self, new):
        return Rounded(new.astype(self.rounded.dtype), self.full_dtype)


class Cast(AbstractStateStorage):
    """Another dtype, rounded to the nearest number.

    Averages over many steps lose small contributions: with $1 - b$ below the precision
    of the dtype, 0.004 in bfloat16, they stop changing.
    [`eqopt.storage.StochasticRounding`][] does not have this problem.

    **Arguments:**

    - `dtype`: a real floating-point dtype of at least 16 bits. Defaults to bfloat16.

    **Raises:**

    A `TypeError` if `dtype` is something else.
    """

    dtype: DTypeLike = eqx.field(static=True, default=jnp.bfloat16)

    def __check_init__(self) -> None:
        check_real_dtype("dtype", self.dtype)

    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> Rounded:
        return Rounded(jnp.array(x, self.dtype, copy=True), x.dtype)

    def _may_have_kept(self, x: AbstractStored) -> bool:
        dtype = jax.dtypes.canonicalize_dtype(self.dtype)
        return isinstance(x, Rounded) and x.rounded.dtype == dtype


class StochasticRounding(AbstractStateStorage, AbstractParamStorage):
    """bfloat16, rounded up or down at random, so that it is exact on average.

    A number $x$ between two neighbours $a < b$ of bfloat16 becomes $b$ with the
    probability $(x - a) / (b - a)$. With rounding to nearest, a parameter stops moving
    if all its updates are smaller than half the distance to a neighbour, which is 0.2
    to 0.4 % of the parameter. With stochastic rounding, it moves correctly on average.

    Use it for a state or for parameters. Each array has its own random key in the
    state, which changes in each step. Replicas of a parameter are rounded identically.
    Derivatives through several steps treat stored values as constants.

    !!! example

        ```python
        model = eqopt.tree.cast(model, jnp.bfloat16)
        storage = eqopt.storage.StochasticRounding()
        opt = eqopt.StoreParams(eqopt.AdamW(1e-3), storage)
        ```

    **Arguments:**

    - `key`: a random key or a seed. Defaults to 0.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{gupta2015limited,
            author = {Gupta, Suyog and Agrawal, Ankur and Gopalakrishnan, Kailash and
                      Narayanan, Pritish},
            title = {Deep Learning with Limited Numerical Precision},
            booktitle = {International Conference on Machine Learning},
            year = {2015},
        }
        ```
    """

    key: Key = 0

    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> Joined:
        seen = jnp.array(x, jnp.bfloat16, copy=True)
        # A parameter may have the same number.
        own = StochasticRounding(jr.fold_in(as_key(self.key), 1))
        return Joined(seen, own._draws(slot, x.dtype))

    def hide(self, p: Inexact[Array, "..."], slot: Slot) -> "Draws | None":
        return self._draws(slot, jnp.float32) if p.dtype == jnp.bfloat16 else None

    def _may_have_kept(self, x: AbstractStored) -> bool:
        return isinstance(x, Joined) and isinstance(x.hidden, Draws)

    def _draws(self, slot: Slot, dtype: Any) -> "Draws":
        key = jr.fold_in(as_key(self.key), slot.place)
        return Draws(jr.key_data(key), str(jr.key_impl(key)), jnp.dtype(dtype))


class Draws(AbstractHidden):
    """The bits of the random key for the next rounding of an array."""

    key: UInt32[Array, "*key"]
    kind: str = eqx.field(static=True)
    full_dtype: Any = eqx.field(static=True)

    _made_by = "StochasticRounding"

    @property
    def dtype(self) -> Any:
        return self.full_dtype

    def fits(self, seen: Inexact[Array, "..."]) -> bool:
        return seen.dtype == jnp.bfloat16

    def join(self, seen):
        return seen.astype(jnp.float32)

    def split(self, new, seen):
        now, later = jr.split(jr.wrap_key_data(self.key, impl=self.kind))
        draws = random_bits(now, new.shape) >> 16
        rounded = rounded_up_or_down(new.astype(jnp.float32), draws)
        return rounded, Draws(jr.key_data(later), self.kind, self.full_dtype)


def rounded_up_or_down(x, draws):
    """`x` in bfloat16: its first 16 bits, rounded up if the rest exceeds a random draw.

    A random draw of 16 bits, added to the rest, overflows with the right probability.
    Values that are not finite stay unchanged.
    """
    word = lax.bitcast_convert_type(x, jnp.uint32)
    carried = (word + draws) & jnp.uint32(0xFFFF0000)
    carried = lax.bitcast_convert_type(carried, jnp.float32)
    return jnp.where(jnp.isfinite(x), carried, x).astype(jnp.bfloat16)


#
# The bits of `jax.random.bits`, so that XLA for a GPU rounds each leaf on its own.
#
# Leaves of one shape share the indices that JAX encrypts. XLA for a GPU then rounds
# several leaves in another kernel, which reads gradients and states again: compiled for
# an H100, a step of AdamW with stochastic rounding moves 7.2 sizes of the parameters.
# Here, each leaf has its own indices, and the step moves 5.0, with the same bits.
#


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def random_bits(key: Any, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Draws 32 random bits for each element, as `jax.random.bits` does."""
    # Whether JAX would also count the elements in 32 bits and encrypt each of them.
    is_alike = (
        str(jr.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # type: ignore  # added at run time
        and math.prod(shape) < 2**32
    )
    if not is_alike:
        return jr.bits(key, shape, jnp.uint32)
    # Without the key, XLA would merge the barriers of all leaves.
    index, data = lax.platform_dependent(
        (jnp.uint32(0), jr.key_data(key)),
        cuda=lax.optimization_barrier,
        default=lambda x: x,
    )
    index = jnp.full(shape, index, jnp.uint32)
    for axis in range(len(shape)):
        index = index * jnp.uint32(shape[axis])
        index += lax.broadcasted_iota(jnp.uint32, shape, axis)
    x, y = _encrypt(data, jnp.zeros_like(index), index)
    return x ^ y


def _encrypt(key, x, y):
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011, "Parallel random numbers")."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = (y << r | y >> (32 - r)) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


class MasterWeights(AbstractParamStorage):
    """A full-precision copy of each parameter; the model has the rounded values.

    It takes 4 bytes per parameter in float32; [`eqopt.storage.SplitMasterWeights`][]
    stores the same bits in 2. Use this one for float16, and if other code writes into
    the model. Only `init` copies the values of the model.

    **Arguments:**

    - `dtype`: the dtype of the copies, float32 or float64. Parameters in this or a
        wider dtype stay unchanged. Defaults to float32.
    """

    dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)

    def hide(self, p: Inexact[Array, "..."], slot: Slot) -> "Master | None":
        dtype = common_dtype(p.dtype, jax.dtypes.canonicalize_dtype(self.dtype))
        if dtype == p.dtype:
            return None
        return Master(jnp.array(p, dtype))

    def _may_have_hidden(self, x: AbstractHidden) -> bool:
        dtype = jax.dtypes.canonicalize_dtype(self.dtype)
        return isinstance(x, Master) and jnp.finfo(x.dtype).dtype == dtype


class Master(AbstractHidden):
    """A parameter in full precision."""

    weights: Inexact[Array, "..."]

    _made_by = "MasterWeights"
    _is_by_element = True

    @property
    def dtype(self) -> Any:
        return self.weights.dtype

    def fits(self, seen: Inexact[Array, "..."]) -> bool:
        return seen.shape == self.weights.shape

    def join(self, seen):
        return self.weights

    def split(self, new, seen):
        return new.astype(seen.dtype), Master(new.astype(self.weights.dtype))


class KahanSummation(AbstractParamStorage):
    r"""The rounding error $k$ of each half-precision parameter $p$.

    The parameter is $p + k$, and after an update $u$, computed in float32,

    $$p \leftarrow \operatorname{round}(p + k + u), \qquad
      k \leftarrow \operatorname{round}(p_{\text{old}} + k + u - p).$$

    Updates that are too small to move $p$ accumulate in $k$. This takes 2 bytes per
    parameter, and gives 16 binary digits in bfloat16 and 22 in float16. For bfloat16,
    [`eqopt.storage.SplitMasterWeights`][] is exact with the same number of bytes.

    Parameters in float32 or float64 stay unchanged.

    ??? cite "Reference"

        ```bibtex
        @article{kahan1965further,
            author = {Kahan, William},
            title = {Further Remarks on Reducing Truncation Errors},
            journal = {Communications of the ACM},
            volume = {8},
            number = {1},
            pages = {40},
            year = {1965},
        }
        ```
    """

    def hide(self, p: Inexact[Array, "..."], slot: Slot) -> "RoundingError | None":
        return RoundingError(_zeros(p, p.dtype)) if p.dtype.itemsize == 2 else None


class RoundingError(AbstractHidden):
    """The rounding error of a parameter."""

    error: Inexact[Array, "..."]

    _made_by = "KahanSummation"
    _is_by_element = True

    @property
    def dtype(self) -> Any:
        return jnp.float32

    def fits(self, seen: Inexact[Array, "..."]) -> bool:
        return (seen.shape, seen.dtype) == (self.error.shape, self.error.dtype)

    def join(self, seen):
        return seen.astype(jnp.float32) + self.error.astype(jnp.float32)

    def split(self, new, seen):
        new = compute_once(new)  # or both parts may be of two numbers, rounded apart
        rounded = new.astype(seen.dtype)
        # An infinite parameter gets no error; otherwise, it would be NaN in the next
        # step.
        error = jnp.where(jnp.isfinite(rounded), new - rounded.astype(new.dtype), 0)
        return rounded, RoundingError(error.astype(self.error.dtype))


class SplitMasterWeights(AbstractParamStorage):
    """Float32 parameters with the high half in the model and the rest in the state.

    The model's half is the number rounded to bfloat16. With 16 bits in the state, both
    together hold all bits of the float32 number, with 4 bytes per parameter and no copy.
    For the same gradients, a step equals a float32 step, except that XLA may round a
    number in the last place. (Gradients that are computed with the rounded model are not
    the same as in float32.) With 8 bits, they hold 24 of 32 bits, with 3 bytes.
    Derivatives through several steps treat stored values as constants; those with
    [`eqopt.storage.MasterWeights`][] do not.

    !!! example

        ```python
        model = eqopt.tree.cast(model, jnp.bfloat16)
        storage = eqopt.storage.SplitMasterWeights()
        opt = eqopt.StoreParams(eqopt.AdamW(1e-3), storage)
        ```

    Parameters in float32 or float64 stay unchanged.

    **Arguments:**

    - `bits`: the number of bits in the state, 16 or 8. Defaults to 16.

    **Raises:**

    A `ValueError` if `bits` is something else. In `init`, a `TypeError` for float16
    parameters, whose bits are not the first half of a float32 number's bits, and for
    complex parameters.

    ??? cite "References"

        The exact split follows Jordan's `modded-nanogpt`. The split with 8 bits
        follows:

        ```bibtex
        @article{ortiz2026flashoptim,
            title = {FlashOptim: Optimizers for Memory Efficient Training},
            journal = {arXiv:2602.23349},
            year = {2026},
        }
        ```
    """

    bits: Literal[16, 8] = static_choice(static=True, default=16)

    def hide(self, p: Inexact[Array, "..."], slot: Slot) -> "LowBits | None":
        if p.dtype.itemsize >= 4 and not jnp.iscomplexobj(p):
            return None
        if p.dtype != jnp.bfloat16:
            raise InputError(
                "the first half of a float32 number is a bfloat16 number, but this "
                f"parameter has dtype {p.dtype}. Cast it with `eqopt.tree.cast(model, "
                "jnp.bfloat16)`, or use `eqopt.storage.MasterWeights()`."
            )
        return LowBits(_zeros(p, jnp.uint16 if self.bits == 16 else jnp.uint8))

    def _may_have_hidden(self, x: AbstractHidden) -> bool:
        return isinstance(x, LowBits) and x._width == self.bits


class LowBits(AbstractHidden):
    """The last bits of a float32 number whose first bits were rounded."""

    bits: UInt16[Array, "..."] | UInt8[Array, "..."]

    _is_by_element = True

    @property
    def _made_by(self):
        return f"SplitMasterWeights(bits={self._width})"

    @property
    def dtype(self) -> Any:
        return jnp.float32

    def fits(self, seen: Inexact[Array, "..."]) -> bool:
        return (seen.shape, seen.dtype) == (self.bits.shape, jnp.bfloat16)

    @property
    def _width(self) -> int:
        return 8 * self.bits.dtype.itemsize

    def join(self, seen):
        low = self.bits.astype(jnp.uint32) << (16 - self._width)
        high = lax.bitcast_convert_type(seen, jnp.uint16).astype(jnp.uint32)
        # It was rounded up if the first of the low bits is set.
        word = (high - (low >> 15) << 16) | low
        return lax.bitcast_convert_type(word, jnp.float32)

    def split(self, new, seen):
        # All NaNs become the same NaN; rounded up, some would become numbers.
        new = jnp.where(jnp.isnan(new), jnp.nan, new).astype(jnp.float32)
        word = lax.bitcast_convert_type(new, jnp.uint32)
        if dropped := 16 - self._width:
            word += jnp.uint32(1 << (dropped - 1))
            word = word >> dropped << dropped
        high = (word + jnp.uint32(0x8000)) >> 16
        seen = lax.bitcast_convert_type(high.astype(jnp.uint16), seen.dtype)
        low = (word & jnp.uint32(0xFFFF)) >> dropped
        return seen, LowBits(low.astype(self.bits.dtype))


def _zeros(p, dtype):
    """Zeros in the shards of `p`."""
    return sharded_like(p, jnp.zeros_like(p, dtype))
