"""The angle between two vectors."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ..numerics._numerics import safe_sqrt
from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_mask,
    as_scalar,
    check_same_shape,
    one_value_each,
    widen,
)
from ._logarithms import with_derivatives_of


def cosine_similarity(
    predictions: Float[Array | np.ndarray, "..."],
    targets: Float[Array | np.ndarray, "..."],
    *,
    eps: RealScalarLike = 0.0,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The cosine of the angle between two vectors.

    $$\cos(x, y) = \frac{x \cdot y}
        {\max(|x|, \sqrt\epsilon) \max(|y|, \sqrt\epsilon)}$$

    The cosine with a vector of zeros is 0, and so are its derivatives if
    $\epsilon = 0$. The result is also correct if squares overflow or underflow, and
    never outside $[-1, 1]$.

    **Arguments:**

    - `predictions`: $x$, a floating array.
    - `targets`: $y$, a floating array of the same shape.
    - `eps`: $\epsilon \ge 0$, a number or a 0-d array: a lower bound of squared norms.
        Defaults to 0.
    - `axis`: the axis or axes of the vectors, `None` for all of them. Defaults to the
        last.
    - `where`: the elements to include, bools of the shape of `predictions`, or without
        the axes of the vectors. Defaults to all.

    **Returns:**

    An array of the shape of `predictions` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `eps` is out of range or has axes.
    """
    cosine, _ = _both("cosine_similarity", predictions, targets, eps, axis, where)
    return one_value_each(cosine, predictions)


def cosine_distance(
    predictions: Float[Array | np.ndarray, "..."],
    targets: Float[Array | np.ndarray, "..."],
    *,
    eps: RealScalarLike = 0.0,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""One minus the cosine of the angle between two vectors, in $[0, 2]$.

    The formula is in [`eqopt.losses.cosine_similarity`][]. The distance to a vector of
    zeros is 1. The distance of close vectors is accurate, too.

    **Arguments:**

    - `predictions`: $x$, a floating array.
    - `targets`: $y$, a floating array of the same shape.
    - `eps`: $\epsilon \ge 0$, a number or a 0-d array: a lower bound of squared norms.
        Defaults to 0.
    - `axis`: the axis or axes of the vectors, `None` for all of them. Defaults to the
        last.
    - `where`: the elements to include, bools of the shape of `predictions`, or without
        the axes of the vectors. Defaults to all.

    **Returns:**

    An array of the shape of `predictions` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `eps` is out of range or has axes.
    """
    _, distance = _both("cosine_distance", predictions, targets, eps, axis, where)
    return one_value_each(distance, predictions)


def _both(
    owner: str, predictions: Any, targets: Any, eps: Any, axis: Any, where: Any
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The cosine and the distance."""
    check_same_shape(
        owner, "predictions", predictions, targets=targets, or_number=False
    )
    x, y = widen(predictions, targets)
    axes = as_axes(owner, axis, x.ndim)
    mask = as_mask(owner, where, x.shape, axes)
    root = jnp.sqrt(as_scalar(owner, "eps", eps, x.dtype, 0))
    x, x_norm, x_size = _measured(jnp.where(mask, x, 0), root, axes)
    y, y_norm, y_size = _measured(jnp.where(mask, y, 0), root, axes)
    norms = x_size * y_size
    # Zero divided by one is zero, and so are its derivatives; the derivatives of the
    # scalar product are not used.
    is_zero = norms == 0
    norms = jnp.where(is_zero, 1, norms)
    cosine = jnp.where(is_zero, 0, jnp.sum(x * y, axes) / norms)
    # Rounding can give equal vectors a cosine above 1, which no angle has.
    bounded = jnp.clip(cosine, -1, 1)
    # And if they are close, 1 minus the cosine has few digits. With the lengths a and b
    # of both, it is (|x - y|^2 - (a - b)^2) / (2 a b). Where `eps` replaces a norm, its
    # square minus a^2 is added.
    near = jnp.sum(jnp.square(x - y), axes) - jnp.square(x_size - y_size)
    near = near + (x_size - x_norm) * (x_size + x_norm)
    near = near + (y_size - y_norm) * (y_size + y_norm)
    near = jnp.maximum(near / (2 * norms), 0)
    distance = jnp.where(bounded > 0.5, near, 1 - bounded)
    return (
        with_derivatives_of(cosine, lax.stop_gradient(bounded)),
        with_derivatives_of(1 - cosine, lax.stop_gradient(distance)),
    )


def _measured(
    x: Float[Array, "*shape"], root: Float[Array, ""], axes: tuple[int, ...]
) -> tuple[Float[Array, "*shape"], Float[Array, "*out"], Float[Array, "*out"]]:
    r"""A multiple of $x$, and the same one of $|x|$ and of $\max(|x|, \sqrt\epsilon)$."""
    x, norm, factor = scaled(x, axes)
    # Not `jnp.maximum`: fused with the sum, it ignores a NaN on a CPU.
    floor = root / factor
    size = jnp.where(norm < floor, floor, norm)
    return x, jnp.squeeze(norm, axes), jnp.squeeze(size, axes)


def scaled(
    x: Float[Array, "*shape"], axes: tuple[int, ...]
) -> tuple[Float[Array, "*shape"], Float[Array, "..."], Float[Array, "..."]]:
    """A multiple of `x`, its norm and the factor, both with `keepdims`.

    The largest element becomes 1, so that squares do not overflow, and not all
    underflow.
    """
    largest = jnp.max(jnp.abs(lax.stop_gradient(x)), axes, keepdims=True, initial=0)
    factor = jnp.where(largest > 0, largest, 1)
    x = x / factor
    return x, safe_sqrt(jnp.sum(x * x, axes, keepdims=True)), factor
