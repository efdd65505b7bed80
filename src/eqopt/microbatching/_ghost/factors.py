r"""The gradient of one example as a product of what is already there.

Where a parameter $W$ multiplies $T$ rows $x_t$, with cotangents $y_t$ of the results, its
gradient is $G = \sum_t x_t y_t^T$, and

$$\|G\|^2 = \sum_{s,t} (x_s \cdot x_t) (y_s \cdot y_t).$$

So the norm needs no array of the size of $G$. Neither does the sum of $c_i G_i$ over the
examples, which is one product of matrices with all rows of all of them.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Inexact, Int

from ...numerics import abs_sq, common_dtype


class Layout(eqx.Module):
    """How a parameter consists of a matrix for each of some groups.

    **Attributes:**

    - `shape`: that of the parameter.
    - `view`: the same with an axis cut in two, perhaps.
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


class AbstractFactor(eqx.Module):
    """The gradient of one example, or, with one more axis in front, of each of some."""

    @abc.abstractmethod
    def squared_norm(self) -> Float[Array, ""]:
        """For one example."""

    @abc.abstractmethod
    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        """The sum over examples, with the shape of the parameter."""


class Whole(AbstractFactor):
    """The gradient itself."""

    gradient: Inexact[Array, "..."]

    def squared_norm(self) -> Float[Array, ""]:
        return jnp.sum(abs_sq(_wide(self.gradient)))

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

    def whole_if_smaller(self) -> AbstractFactor:
        _, rows, left = self.left.shape
        right = self.right.shape[-1]
        if left * right > rows * (left + right):
            return self
        # Then to compute it takes less time than the norm without it, too.
        matrices = _einsum("gtl,gtr->glr", self.left, self.right)
        return Whole(self.layout.parameter(matrices))

    def squared_norm(self) -> Float[Array, ""]:
        left, right = _wide(self.left), _wide(self.right)
        if left.shape[1] == 1:
            norms = jnp.sum(abs_sq(left), 2) * jnp.sum(abs_sq(right), 2)
        else:
            norms = jnp.real(_products(left, left) * _products(right, right))
        return jnp.sum(norms)

    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        right = _weighted(weights, self.right)
        return self.layout.parameter(_sum("ngtl,ngtr->glr", self.left, right))


class Picks(AbstractFactor):
    """$x_t$ has a one at `index[t]`, and is zero elsewhere or, out of range, everywhere.

    So it is in the gradient of a look-up in a table.
    """

    index: Int[Array, "*n rows"]
    right: Inexact[Array, "*n rows right"]
    layout: Layout

    def squared_norm(self) -> Float[Array, ""]:
        # Rows with the same index add up first: in that one of them that comes first.
        first = jnp.argmax(self.index[:, None] == self.index[None], axis=1)
        sums = jnp.zeros_like(_wide(self.right)).at[first].add(self._right)
        return jnp.sum(abs_sq(sums))

    def weighted_sum(self, weights: Float[Array, "n"]) -> Inexact[Array, "..."]:
        right = _weighted(weights, self.right)
        table = jnp.zeros((self._length, right.shape[-1]), right.dtype)
        index = jnp.where(self._is_valid, self.index, self._length)
        table = table.at[index.ravel()].add(lax.collapse(right, 0, 2), mode="drop")
        return self.layout.parameter(table[None])

    def times(self, other: Rows) -> Float[Array, ""]:
        """The scalar product of two parts of one example's gradient."""
        left = other.left[0][:, jnp.where(self._is_valid, self.index, 0)]
        return jnp.sum(
            jnp.real(_wide(left) * _products(other.right, self._right[None])[0])
        )

    @property
    def _length(self) -> int:
        return math.prod(self.layout.view[i] for i in self.layout.left)

    @property
    def _is_valid(self) -> Bool[Array, "*n rows"]:
        return (self.index >= 0) & (self.index < self._length)

    @property
    def _right(self) -> Inexact[Array, "*n rows right"]:
        return jnp.where(self._is_valid[..., None], _wide(self.right), 0)


def combine(factors: Sequence[Rows | Picks]) -> list[AbstractFactor]:
    """The gradient of a parameter with several uses, in as few factors as can be."""
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


def squared_norm(factors: Sequence[AbstractFactor]) -> Float[Array, ""]:
    """That of the sum of the factors, which `combine` returned."""
    norms = [f.squared_norm() for f in factors]
    if len(norms) < 2:
        return norms[0] if norms else jnp.zeros((), jnp.float32)
    rows, picks = factors
    assert isinstance(rows, Rows) and isinstance(picks, Picks)
    return norms[0] + norms[1] + 2 * picks.times(rows)


def weighted_sum(
    factors: Sequence[AbstractFactor], weights: Float[Array, "n"]
) -> Inexact[Array, "..."]:
    """That of the gradients of all examples."""
    first, *rest = [f.weighted_sum(weights) for f in factors]
    return sum(rest, start=first)


def _products(x: Array, y: Array) -> Inexact[Array, "groups rows other_rows"]:
    return _einsum("gsi,gti->gst", x, jnp.conj(y))


def _weighted(weights: Float[Array, "n"], x: Array) -> Array:
    x = _wide(x)
    return x * jnp.expand_dims(weights, range(1, x.ndim)).astype(x.dtype)


def _sum(subscripts: str, x: Array, y: Array) -> Array:
    """Over examples: the result is the same on all devices."""
    sharding = jax.typeof(y).sharding
    if sharding.spec[:1] in ((), (None,)):
        return _einsum(subscripts, x, y)
    # Explicitly sharded examples: JAX asks where the result is to be.
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    return _einsum(subscripts, x, y, out_sharding=everywhere)


def _einsum(subscripts: str, *arrays: Array, **kwargs: Any) -> Array:
    # Accelerators must not round its factors: the bound on a norm is a promise.
    dtype = common_dtype(*(x.dtype for x in arrays), jnp.float32)
    arrays = tuple(x.astype(dtype) for x in arrays)
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST, **kwargs)


def _wide(x: Array) -> Array:
    return x.astype(common_dtype(x.dtype, jnp.float32))
