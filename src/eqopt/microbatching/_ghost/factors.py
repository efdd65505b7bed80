r"""The gradient of one example as a product of arrays that already exist.

If a parameter $W$ multiplies $T$ rows $x_t$, with cotangents $y_t$ of the results, its
gradient is $G = \sum_t x_t y_t^T$, and

$$\|G\|^2 = \sum_{s,t} (x_s \cdot x_t) (y_s \cdot y_t).$$

So the norm needs no array of the size of $G$. Neither does the sum of $c_i G_i$ over
the examples, which is one matrix product with all rows of all examples.

If the rows of an example nearly cancel, both are small differences of large numbers,
and the rounding error is relatively large. So each norm comes with a bound on its
rounding error.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Inexact, Int

from ...numerics._numerics import abs_sq, at_least_float32, common_dtype, wide_dtype


class Layout(eqx.Module):
    """How a parameter consists of a matrix for each of some groups.

    **Attributes:**

    - `shape`: the shape of the parameter.
    - `view`: the shape, possibly with one axis split in two.
    - `groups`, `left`, `right`: the axes of `view` along which are the groups, and the
        rows and columns of the matrices. Axes of size 1 are in none of them.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    view: tuple[int, ...] = eqx.field(static=True)
    groups: tuple[int, ...] = eqx.field(static=True)
    left: tuple[int, ...] = eqx.field(static=True)
    right: tuple[int, ...] = eqx.field(static=True)

    @property
    def swapped(self) -> "Layout":
        return Layout(self.shape, self.view, self.groups, self.right, self.left)

    def parameter(self, matrices: Inexact[Array, "groups left right"]) -> Array:
        axes = (*self.groups, *self.left, *self.right)
        x = jnp.reshape(matrices, [self.view[i] for i in axes])
        x = jnp.transpose(x, [axes.index(i) for i in sorted(axes)])
        return jnp.reshape(x, self.shape)


class Square(NamedTuple):
    """The squared norm of one example's gradient, and a bound on its rounding error.

    **Attributes:**

    - `value`: the square.
    - `error`: an upper bound on how much smaller `value` is than the exact square.
    - `scale`: the norm without cancellation between rows.
    - `spread`: an upper bound on the norm of the rounding error that the example adds
        to `weighted_sum`, in addition to its gradient.
    """

    value: Float[Array, ""]
    error: Float[Array, ""]
    scale: Float[Array, ""]
    spread: Float[Array, ""]


class AbstractFactor(eqx.Module):
    """The gradient of one example, or of several along an additional first axis."""

    @abc.abstractmethod
    def square(self) -> Square:
        """For one example."""

    @abc.abstractmethod
    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        """The sum over examples, with the shape of the parameter."""


class Whole(AbstractFactor):
    """The gradient itself."""

    gradient: Inexact[Array, "..."]

    def square(self) -> Square:
        value = jnp.sum(abs_sq(at_least_float32(self.gradient)))
        size = self.gradient.size
        rounding = lax.stop_gradient(value) * _of_sum(size, value.dtype)
        error = rounding + size * _tiny(value.dtype)
        none = jnp.zeros_like(value)
        return Square(value, error, none, none)

    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        return _sum("n,n...->...", weights, self.gradient)


class Rows(AbstractFactor):
    """$x$ and $y$, for each group of a layout."""

    left: Inexact[Array, "*n groups rows left"]
    right: Inexact[Array, "*n groups rows right"]
    layout: Layout

    @property
    def swapped(self) -> "Rows":
        return Rows(self.right, self.left, self.layout.swapped)

    @property
    def real(self) -> "Rows":
        r"""The real part of $(a + ib)(c + id)^T$, $ac^T - bd^T$: twice the rows."""
        left, right = self.left, self.right
        if not jnp.iscomplexobj(left):
            return Rows(left, jnp.real(right), self.layout)
        left = jnp.concatenate([jnp.real(left), -jnp.imag(left)], -2)
        right = jnp.concatenate([jnp.real(right), jnp.imag(right)], -2)
        return Rows(left, right, self.layout)

    def whole_if_smaller(self) -> AbstractFactor:
        _, rows, left = self.left.shape
        right = self.right.shape[-1]
        if left * right > rows * (left + right):
            return self
        # Then computing it is also faster than the norm without it.
        matrices = _einsum("gtl,gtr->glr", self.left, self.right)
        return Whole(self.layout.parameter(matrices))

    def square(self) -> Square:
        left, right = at_least_float32(self.left), at_least_float32(self.right)
        x, dx = _bounded_products(left, left)
        y, dy = _bounded_products(right, right)
        value = jnp.sum(jnp.real(x * y))
        x, y = lax.stop_gradient((jnp.abs(x), jnp.abs(y)))
        rounding = x * y * _of_sum(4 * x.size, value.dtype)
        error = jnp.sum(x * dy + dx * (y + dy) + rounding)
        scale = jnp.sum(jnp.sqrt(_diagonal(x)) * jnp.sqrt(_diagonal(y)))
        spread = _of_dot(left.shape[1] + 4, value.dtype) * scale
        return Square(value, error, scale, spread)

    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        right = _weighted(weights, self.right)
        return self.layout.parameter(_sum("ngtl,ngtr->glr", self.left, right))


class Picks(AbstractFactor):
    """$x_t$ has a one at `index[t]`, and is zero elsewhere or, out of range, everywhere.

    This is the gradient of a look-up in a table.
    """

    index: Int[Array, "*n rows"]
    right: Inexact[Array, "*n rows right"]
    layout: Layout

    def square(self) -> Square:
        # Rows with the same index are first added up, in the first of them.
        first = jnp.argmax(self.index[:, None] == self.index[None], axis=1)
        sums = jnp.zeros_like(at_least_float32(self.right)).at[first].add(self._right)
        squares = jnp.sum(abs_sq(sums), 1)
        value = jnp.sum(squares)
        norms, all_norms = lax.stop_gradient((jnp.sqrt(squares), self._norms))
        together = jnp.zeros_like(norms).at[first].add(all_norms)
        far = _of_dot(len(norms) + 4, value.dtype) * together
        rounding = lax.stop_gradient(value) * _of_sum(sums.size, value.dtype)
        error = jnp.sum((2 * norms + far) * far) + rounding
        error = error + sums.size * _tiny(value.dtype)
        scale = jnp.sqrt(jnp.sum(together**2))
        return Square(value, error, scale, jnp.sqrt(jnp.sum(far**2)))

    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        right = _weighted(weights, self.right)
        table = jnp.zeros((self._length, right.shape[-1]), right.dtype)
        index = jnp.where(self._is_valid, self.index, self._length)
        table = table.at[index.ravel()].add(lax.collapse(right, 0, 2), mode="drop")
        return self.layout.parameter(table[None])

    @property
    def real(self) -> "Picks":
        return Picks(self.index, jnp.real(self.right), self.layout)

    def times(self, other: Rows) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The scalar product of two parts of a gradient, and its rounding error."""
        index = jnp.where(self._is_valid, self.index, 0)
        left = at_least_float32(other.left[0][:, index])
        right = at_least_float32(other.right)
        y, dy = (x[0] for x in _bounded_products(right, self._right[None]))
        value = jnp.sum(jnp.real(left * y))
        left, y = lax.stop_gradient((jnp.abs(left), jnp.abs(y)))
        rounding = y * _of_sum(4 * y.size, value.dtype)
        return value, jnp.sum(left * (dy + rounding)) + y.size * _tiny(value.dtype)

    @property
    def _length(self) -> int:
        return math.prod(self.layout.view[i] for i in self.layout.left)

    @property
    def _is_valid(self) -> Bool[Array, "*n rows"]:
        return (self.index >= 0) & (self.index < self._length)

    @property
    def _norms(self) -> Float[Array, "*n rows"]:
        return jnp.sqrt(jnp.sum(abs_sq(self._right), -1))

    @property
    def _right(self) -> Inexact[Array, "*n rows right"]:
        return jnp.where(self._is_valid[..., None], at_least_float32(self.right), 0)


def combine(factors: Sequence[Rows | Picks]) -> list[AbstractFactor]:
    """The gradient of a parameter with several uses, in as few factors as possible."""
    rows = [f for f in factors if isinstance(f, Rows)]
    picks = [f for f in factors if isinstance(f, Picks)]
    layout = (picks or rows)[0].layout
    rows = [f if f.layout == layout else f.swapped for f in rows]
    joined = []
    arrays = [x for f in rows for x in (f.left, f.right)] + [f.right for f in picks]
    dtype = common_dtype(*(x.dtype for x in arrays))
    if rows:
        left = jnp.concatenate([f.left.astype(dtype) for f in rows], 1)
        right = jnp.concatenate([f.right.astype(dtype) for f in rows], 1)
        joined.append(Rows(left, right, layout))
    if picks:
        index = jnp.concatenate([f.index for f in picks])
        right = jnp.concatenate([f.right.astype(dtype) for f in picks])
        joined.append(Picks(index, right, layout))
    return joined if picks else [joined[0].whole_if_smaller()]


# A norm counts as at least this fraction of the norm without cancellation between rows,
# so that the rows are not large in the sum over all examples, which rounds according to
# its own size.
_LEAST = 2.0**-8


def squared_norm(factors: Sequence[AbstractFactor]) -> tuple[Array, Array]:
    """The squared norm of the sum of the factors, which `combine` returned.

    Also returns how much larger the square may be than the contribution of the example
    to `weighted_sum`.
    """
    if not factors:
        return jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
    squares = zip(*(f.square() for f in factors), strict=True)
    value, error, scale, spread = (jnp.sum(jnp.stack(x)) for x in squares)
    if len(factors) > 1:
        rows, picks = factors
        assert isinstance(rows, Rows) and isinstance(picks, Picks)
        product, rounding = picks.times(rows)
        value, error = value + 2 * product, error + 2 * rounding
    known = jnp.maximum(lax.stop_gradient(value), 0)
    error = error + spread * (2 * jnp.sqrt(known + error) + spread)
    return value, jnp.maximum(error, (scale * _LEAST) ** 2 - known)


def clip_factors(norms: Float[Array, "..."], limit: Any) -> Float[Array, "..."]:
    """The factors that reduce the given norms to at most `limit`.

    A zero gradient is not clipped. For a NaN norm, the factor is zero: NaN values stay
    NaN, and finite values add nothing. A traced limit may be wrong without an error: a
    negative one counts as zero, and for a NaN limit, the factors are NaN.
    """
    limit = jnp.asarray(limit, norms.dtype)
    limit = jnp.where(limit < 0, 0, limit)
    exceeds = (norms > limit) | jnp.isnan(limit)
    factors = jnp.where(exceeds, limit / jnp.where(exceeds, norms, 1), 1)
    return jnp.where(jnp.isnan(norms) & (limit < jnp.inf), 0, factors)


class Summand(eqx.Module):
    """What an example adds to a sum: its gradient in factors, times `scale`.

    The sum has this `shape` and `dtype`.
    """

    factors: list[AbstractFactor]
    scale: Float[Array, "*n"]
    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def sum(self, weights: Float[Array, "n"] | None) -> Inexact[Array, "..."]:
        """The weighted sum over examples, without those whose weight is zero."""
        factors, scale = self.factors, self.scale
        if weights is not None:
            scale = weights.astype(scale.dtype) * scale
            # Zero times a value that is not finite is not zero.
            is_ignored = lambda x: jnp.expand_dims(weights, range(1, x.ndim)) == 0
            factors = jtu.tree_map(lambda x: jnp.where(is_ignored(x), 0, x), factors)
        if not factors:
            return jnp.zeros(self.shape, self.dtype)
        first, *rest = [f.weighted_sum(scale) for f in factors]
        return sum(rest, start=first)


def _weighted(weights: Float[Array, "n"], x: Array) -> Array:
    x = at_least_float32(x)
    return x * jnp.expand_dims(weights, range(1, x.ndim)).astype(x.dtype)


def _sum(subscripts: str, x: Array, y: Array) -> Array:
    """Over examples: the result is the same on all devices."""
    sharding = jax.typeof(y).sharding
    if sharding.spec[:1] in ((), (None,)):
        return _einsum(subscripts, x, y)
    # Explicitly sharded examples: JAX requires the sharding of the result.
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    return _einsum(subscripts, x, y, out_sharding=everywhere)


#
# Matrix products, and bounds on their rounding errors
#


def _bounded_products(x: Array, y: Array) -> tuple[Array, Array]:
    """The scalar products of the rows in each group, and bounds on rounding errors."""
    result, terms = _products(x, jnp.conj(y))
    dtype = result.real.dtype
    least = x.shape[2] * _tiny(dtype)
    s, t = (jnp.sqrt(jnp.sum(abs_sq(lax.stop_gradient(z)), 2) + least) for z in (x, y))
    return result, _of_dot(terms, dtype) * s[:, :, None] * t[:, None] + least


def _products(x: Array, y: Array) -> tuple[Array, int]:
    """The products, and the number of terms that determines their rounding."""
    parts, length = 1 + jnp.iscomplexobj(x), x.shape[2]
    if x.shape[1] == y.shape[1] == 1:
        return jnp.sum(x * y, 2, keepdims=True), parts * _blocks(length)
    count = max(1, length // _PIECE)
    size, rest = divmod(length, count)

    def piece(start: Any, size: int) -> Array:
        cut = (lax.dynamic_slice_in_dim(z, start, size, 2) for z in (x, y))
        return _einsum("gsi,gti->gst", *cut)

    result = piece(0, size + rest)
    if count > 1:
        starts = size * jnp.arange(1, count) + rest
        add = lambda total, start: (total + piece(start, size), None)
        result = lax.scan(add, result, starts)[0]
    return result, parts * (size + rest) + count + 2


# Products of longer rows are added up in pieces, which reduces rounding errors.
_PIECE = 256


# The relative error of a sum of `size` terms in any order, compared with the sum of
# their absolute values, is below this bound. XLA computes a matrix product in one of
# many orders, but adds up the elements of an array in blocks.
def _of_dot(size: int, dtype: Any) -> Any:
    return dtype.type(0.6 * float(jnp.finfo(dtype).eps) * size)


def _of_sum(size: int, dtype: Any) -> Any:
    return _of_dot(_blocks(size), dtype)


def _blocks(size: int) -> int:
    return 2 * math.isqrt(size) + 4


def _tiny(dtype: Any) -> Any:
    """A smaller product may underflow to zero."""
    return jnp.finfo(dtype).tiny


def _diagonal(x: Float[Array, "groups rows rows"]) -> Float[Array, "groups rows"]:
    return jnp.diagonal(x, axis1=1, axis2=2)


def _einsum(subscripts: str, *arrays: Array, **kwargs: Any) -> Array:
    # Accelerators must not round its factors: norms must stay within their bounds.
    dtype = wide_dtype(*(x.dtype for x in arrays))
    arrays = tuple(x.astype(dtype) for x in arrays)
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST, **kwargs)
