"""The angle between two vectors."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ..numerics import safe_sqrt
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
    $\epsilon = 0$. The result is also correct if squares overflow or underflow.

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
    cosine = _cosine("cosine_similarity", predictions, targets, eps, axis, where)
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
    zeros is 1.

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
    cosine = _cosine("cosine_distance", predictions, targets, eps, axis, where)
    return one_value_each(1 - cosine, predictions)


def _cosine(
    owner: str, predictions: Any, targets: Any, eps: Any, axis: Any, where: Any
) -> Float[Array, "..."]:
    check_same_shape(
        owner, "predictions", predictions, targets=targets, or_number=False
    )
    x, y = widen(predictions, targets)
    axes = as_axes(owner, axis, x.ndim)
    mask = as_mask(owner, where, x.shape, axes)
    least = as_scalar(owner, "eps", eps, x.dtype, 0)
    x, y = (jnp.where(mask, z, 0) for z in (x, y))
    (x, x_norm), (y, y_norm) = (scaled(z, least, axes) for z in (x, y))
    norms = jnp.squeeze(x_norm * y_norm, axes)
    # Zero divided by one is zero, and so are its derivatives; the derivatives of the
    # scalar product are not used.
    is_zero = norms == 0
    dot = jnp.sum(x * y, axes)
    return jnp.where(is_zero, 0, dot / jnp.where(is_zero, 1, norms))


def scaled(
    x: Float[Array, "*shape"], eps: Float[Array, ""], axes: tuple[int, ...]
) -> tuple[Float[Array, "*shape"], Float[Array, "..."]]:
    r"""A multiple of $x$ and, with `keepdims`, of $\max(|x|, \sqrt\epsilon)$.

    The largest element becomes 1, so that squares do not overflow, and not all
    underflow.
    """
    largest = jnp.max(jnp.abs(lax.stop_gradient(x)), axes, keepdims=True, initial=0)
    factor = jnp.where(largest > 0, largest, 1)
    x = x / factor
    norm = safe_sqrt(jnp.sum(x * x, axes, keepdims=True))
    return x, jnp.maximum(norm, jnp.sqrt(eps) / factor)
