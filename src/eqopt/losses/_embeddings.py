"""Losses of vectors: the angle between two, and distances of embeddings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Real

from .._types import Interval, RealScalarLike
from ..numerics._numerics import safe_sqrt
from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_mask,
    as_scalar,
    log_sum,
    one_value_each,
    widen,
    widen_alike,
    with_derivatives_of,
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
    cosine, _ = _both(predictions, targets, eps, axis, where)
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
    _, distance = _both(predictions, targets, eps, axis, where)
    return one_value_each(distance, predictions)


def _both(predictions: Any, targets: Any, eps: Any, axis: Any, where: Any):
    """The cosine and the distance."""
    x, y = widen_alike(predictions=predictions, targets=targets)
    axes = as_axes(axis, x.ndim)
    mask = as_mask(where, x.shape, axes)
    root = jnp.sqrt(as_scalar("eps", eps, x.dtype))
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


def _measured(x, root, axes):
    r"""A multiple of $x$, and the same one of $|x|$ and of $\max(|x|, \sqrt\epsilon)$."""
    x, norm, factor = scaled(x, axes)
    # Not `jnp.maximum`: fused with the sum, it ignores a NaN on a CPU.
    floor = root / factor
    size = jnp.where(norm < floor, floor, norm)
    return x, jnp.squeeze(norm, axes), jnp.squeeze(size, axes)


def scaled(x, axes):
    """A multiple of `x`, its norm and the factor, both with `keepdims`.

    The largest element becomes 1, so that squares do not overflow, and not all
    underflow.
    """
    largest = jnp.max(jnp.abs(lax.stop_gradient(x)), axes, keepdims=True, initial=0)
    factor = jnp.where(largest > 0, largest, 1)
    x = x / factor
    return x, safe_sqrt(jnp.sum(x * x, axes, keepdims=True)), factor


def ntxent(
    embeddings: Float[Array | np.ndarray, "batch features"],
    labels: Real[ArrayLike, " batch"] | Bool[ArrayLike, " batch"],
    temperature: RealScalarLike = 0.07,
) -> Float[Array, ""]:
    r"""The normalized, temperature-scaled cross entropy of SimCLR.

    $$\ell = \frac{1}{|P|} \sum_{(i, j) \in P} -\log \frac{e^{s_{ij}}}
        {e^{s_{ij}} + \sum_{k:\, y_k \ne y_i} e^{s_{ik}}}, \qquad
      s_{ij} = \frac{\cos(z_i, z_j)}{\tau}$$

    over all pairs $P$ of different examples with equal labels, in both orders. Without
    any such pair, the loss is 0. An example of zeros has the cosine 0 with all others.
    In the cosine, norms below $\sqrt\varepsilon$ count as $\sqrt\varepsilon$, with the
    machine epsilon $\varepsilon$: 3.5e-4 in float32. So scale tiny embeddings up.

    **Arguments:**

    - `embeddings`: $z$, a floating array of shape `(batch, features)`.
    - `labels`: $y$, of shape `(batch,)`: equal for examples that belong together, such
        as two views of an image.
    - `temperature`: $\tau > 0$, a number or a 0-d array. Defaults to 0.07.

    **Returns:**

    A 0-d array of the dtype of `embeddings`.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `temperature` is out of range or has
    axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{chen2020simple,
            author = {Chen, Ting and Kornblith, Simon and Norouzi, Mohammad and
                      Hinton, Geoffrey},
            title = {A Simple Framework for Contrastive Learning of Visual
                     Representations},
            booktitle = {International Conference on Machine Learning},
            year = {2020},
            eprint = {2002.05709},
            archivePrefix = {arXiv},
        }
        ```
    """
    (z,) = widen(embeddings)
    y = jnp.asarray(labels)
    positive = Interval(0, includes_low=False, includes_high=False)
    heat = as_scalar("temperature", temperature, z.dtype, positive)
    least = jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype)
    z, norm, factor = scaled(z, (1,))
    z = z / jnp.maximum(norm, jnp.sqrt(least) / factor)
    # A table of all cosines, not of all products of elements. On an accelerator, the
    # default precision would leave three digits.
    s = jnp.matmul(z, z.T, precision="highest") / heat
    is_same = y[:, None] == y[None, :]
    is_pair = is_same & ~jnp.eye(len(y), dtype=bool)
    top, log = log_sum(s, (1,), ~is_same)
    losses = jax.nn.softplus((top - s) + log)
    losses = jnp.where(is_pair, losses, 0)
    number = jnp.sum(is_pair).astype(z.dtype)
    return one_value_each(jnp.sum(losses) / jnp.maximum(number, 1), embeddings)


def triplet_margin_loss(
    anchors: Float[Array | np.ndarray, "..."],
    positives: Float[Array | np.ndarray, "..."],
    negatives: Float[Array | np.ndarray, "..."],
    axis: Axes = -1,
    norm_degree: RealScalarLike = 2,
    margin: RealScalarLike = 1.0,
    eps: RealScalarLike = 1e-6,
) -> Float[Array, "..."]:
    r"""The triplet loss: similar embeddings are closer than others, by a margin.

    $$\ell(a, p, n) = \max\left(0, d(a, p) - d(a, n) + m\right), \qquad
      d(x, y) = \Big(\sum_i |x_i - y_i|^q + \epsilon\Big)^{1/q}$$

    **Arguments:**

    - `anchors`: $a$, a floating array of shape `(..., features)`.
    - `positives`: $p$, an array of the same shape: embeddings that are similar to the
        anchor.
    - `negatives`: $n$, an array of the same shape: embeddings that are not.
    - `axis`: the axis or axes of the features, `None` for all of them. Defaults to the
        last.
    - `norm_degree`: $q \ge 1$, a number or a 0-d array. Defaults to 2.
    - `margin`: $m \ge 0$, a number or a 0-d array. Defaults to 1.
    - `eps`: $\epsilon \ge 0$, a number or a 0-d array. Defaults to 1e-6. With 0, the
        distance of equal embeddings has derivative 0.

    **Returns:**

    An array of the shape of `anchors` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit, or if a number is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{balntas2016learning,
            author = {Balntas, Vassileios and Riba, Edgar and Ponsa, Daniel and
                      Mikolajczyk, Krystian},
            title = {Learning Local Feature Descriptors with Triplets and Shallow
                     Convolutional Neural Networks},
            booktitle = {British Machine Vision Conference},
            year = {2016},
        }
        ```
    """
    a, p, n = widen_alike(anchors=anchors, positives=positives, negatives=negatives)
    axes = as_axes(axis, a.ndim)
    from_one = Interval(1, includes_high=False)
    degree = as_scalar("norm_degree", norm_degree, a.dtype, from_one)
    room = as_scalar("margin", margin, a.dtype)
    floor = as_scalar("eps", eps, a.dtype)
    near, far = (_distance(a - x, axes, degree, floor) for x in (p, n))
    return one_value_each(jnp.maximum(near - far + room, 0), anchors)


def _distance(gap, axes, degree, floor):
    size = jnp.abs(gap)
    # In units of the largest term, no power overflows, and not all underflow. For
    # derivatives, the unit is a constant: the distance does not depend on it.
    unit = jnp.max(size, axes, keepdims=True, initial=0)
    unit = jnp.maximum(unit, floor ** (1 / degree))
    unit = lax.stop_gradient(jnp.where(unit > 0, unit, 1))
    # The power is differentiated only where it has a derivative.
    powers = jnp.where(size > 0, jnp.where(size > 0, size / unit, 1) ** degree, 0)
    least = jnp.finfo(gap.dtype).tiny
    floor = floor / jnp.maximum(unit**degree, least)
    total = jnp.sum(powers, axes) + jnp.squeeze(floor, axes)
    root = jnp.where(total > 0, total, 1) ** (1 / degree)
    return jnp.where(total > 0, root * jnp.squeeze(unit, axes), 0)
