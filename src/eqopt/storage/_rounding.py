"""Arrays in another dtype, rounded to the nearest number or to a random neighbour."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, DTypeLike, Inexact, UInt32

from .._trees.keys import as_key
from .._trees.stored import AbstractHidden, AbstractStored, Joined
from .._types import Key
from ._base import AbstractParamStorage, AbstractStateStorage, Slot
from ._random_bits import random_bits


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
        try:
            dtype = jnp.dtype(self.dtype)
        except TypeError:
            dtype = repr(self.dtype)
        if isinstance(dtype, str) or not _is_fit(dtype):
            raise TypeError(
                "Cast: `dtype` must be a real floating-point dtype of at least 16 "
                f"bits, such as `jnp.bfloat16`, but is {dtype}. For 8 bits, use "
                "`eqopt.storage.Float8` or `BlockwiseQuantized`, which scale the "
                "numbers."
            )

    def keep(self, x: Inexact[Array, "..."], slot: Slot) -> Rounded:
        return Rounded(jnp.array(x, self.dtype, copy=True), x.dtype)

    def _may_have_kept(self, x: AbstractStored) -> bool:
        dtype = jax.dtypes.canonicalize_dtype(self.dtype)
        return isinstance(x, Rounded) and x.rounded.dtype == dtype


def _is_fit(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1


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
