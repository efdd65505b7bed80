"""Parameters with the high half in the model, and the rest in the state."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Inexact, UInt8, UInt16

from .._arguments.fields import static_choice
from .._errors import InputError
from .._platforms import compute_once
from .._trees.sharding import sharded_like
from .._trees.stored import AbstractHidden
from ..numerics._numerics import common_dtype
from ._base import AbstractParamStorage, Slot


class MasterWeights(AbstractParamStorage):
    """A full-precision copy of each parameter; the model has the rounded values.

    It takes 4 bytes per parameter in float32; [`eqopt.storage.SplitMasterWeights`][]
    stores the same bits in 2. Use this one for float16, and if other code writes into
    the model. Only `init` copies the values of the model.

    **Arguments:**

    - `dtype`: the dtype of the copies, float32 or float64. Parameters in this or a
        wider dtype stay unchanged. Defaults to float32.

    **Raises:**

    A `TypeError` if `dtype` is something else.
    """

    dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)

    def __check_init__(self) -> None:
        if jnp.dtype(self.dtype) not in (jnp.float32, jnp.float64):
            raise InputError(
                self, f"`dtype` must be float32 or float64, but is {self.dtype}."
            )

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
                self,
                "the first half of a float32 number is a bfloat16 number, but this "
                f"parameter has dtype {p.dtype}. Cast it with `eqopt.tree.cast(model, "
                "jnp.bfloat16)`, or use `eqopt.storage.MasterWeights()`.",
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
