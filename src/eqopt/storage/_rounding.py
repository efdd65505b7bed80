"""Arrays in another dtype, rounded to the nearest number or to a random neighbour."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, DTypeLike, Inexact, UInt32

from .._arguments.checks import check_real_dtype
from .._trees.keys import as_key
from .._trees.stored import AbstractHidden, AbstractStored, Joined
from .._types import Key
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
        check_real_dtype("Cast", "dtype", self.dtype)

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


def _encrypt(
    key: UInt32[Array, "2"], x: UInt32[Array, "..."], y: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011, "Parallel random numbers")."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = (y << r | y >> (32 - r)) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y
