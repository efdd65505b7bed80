"""Losses for segmentation: the overlap of regions."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._errors import InputError
from .._types import RealScalarLike
from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_scalar,
    check_shape,
    one_value_each,
    widen,
    widen_alike,
    with_derivatives_of,
)


def dice_loss(
    predictions: Float[Array | np.ndarray, "..."],
    targets: RealArrayLike,
    *,
    class_weights: RealArrayLike | None = None,
    smooth: RealScalarLike = 1.0,
    alpha: RealScalarLike = 0.5,
    beta: RealScalarLike = 0.5,
    apply_softmax: bool = True,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_background: bool = False,
    axis: Axes = None,
) -> Float[Array, "..."]:
    r"""The soft Dice loss, and its generalization, the Tversky loss.

    For each class $c$, with sums over pixels $i$,

    $$\ell_c = 1 - \frac{I_c + s}
        {I_c + \alpha\, (P_c - I_c) + \beta\, (T_c - I_c) + s}, \qquad
      I_c = \sum_i p_{ic}\, t_{ic}, \quad P_c = \sum_i p_{ic}, \quad
      T_c = \sum_i t_{ic}.$$

    With $\alpha = \beta = \frac12$, this is one minus the Dice coefficient
    $2 I / (P + T)$. A larger $\alpha$ penalizes false positives, a larger $\beta$ false
    negatives. The loss of a class that is in neither is 0, even with $s = 0$.

    **Arguments:**

    - `predictions`: logits, or probabilities $p$ without `apply_softmax`, a floating
        array of shape `(batch, ..., classes)`; for a binary decision, one class.
    - `targets`: $t$, one-hot, of the same shape. With one class, the last axis of one
        of the two may be missing.
    - `class_weights`: the factor of each $\ell_c$, an array of shape `(classes,)`.
        Defaults to 1.
    - `smooth`: $s \ge 0$, a number or a 0-d array. Defaults to 1.
    - `alpha`: $\alpha \ge 0$, a number or a 0-d array. Defaults to 0.5.
    - `beta`: $\beta \ge 0$, a number or a 0-d array. Defaults to 0.5.
    - `apply_softmax`: whether $p$ is the softmax of `predictions`, or the sigmoid if
        there is one class. Defaults to `True`.
    - `reduction`: the reduction over classes, `"mean"`, `"sum"` or `"none"`. Defaults
        to the mean, which is not weighted.
    - `ignore_background`: whether to exclude class 0 if there are others. Defaults to
        `False`.
    - `axis`: the axes of the pixels, without the axis of the classes. Defaults to all
        but the first and last.

    **Returns:**

    An array of the dtype of `predictions`, of shape `(batch,)` by default: the shape of
    `predictions` without `axis`, and without the classes unless `reduction` is
    `"none"`.

    **Raises:**

    A `ValueError` if shapes do not fit, if `reduction` or `axis` is something else, or
    if a number is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{milletari2016vnet,
            author = {Milletari, Fausto and Navab, Nassir and Ahmadi, Seyed-Ahmad},
            title = {{V-Net}: Fully Convolutional Neural Networks for Volumetric Medical
                     Image Segmentation},
            booktitle = {International Conference on 3D Vision},
            year = {2016},
            eprint = {1606.04797},
            archivePrefix = {arXiv},
        }

        @inproceedings{salehi2017tversky,
            author = {Salehi, Seyed Sadegh Mohseni and Erdogmus, Deniz and
                      Gholipour, Ali},
            title = {{Tversky} Loss Function for Image Segmentation Using 3D Fully
                     Convolutional Deep Networks},
            booktitle = {Machine Learning in Medical Imaging},
            year = {2017},
            eprint = {1706.05721},
            archivePrefix = {arXiv},
        }
        ```
    """
    p, q, t = _prepared(predictions, targets, apply_softmax)
    axes = as_axes(axis, p.ndim) if axis is not None else range(1, p.ndim - 1)
    if p.ndim - 1 in axes:
        raise InputError(
            f"`axis` must not contain the last axis, the classes, but is {axis}."
        )
    numbers = {"smooth": smooth, "alpha": alpha, "beta": beta}
    s, a, b = (as_scalar(k, x, p.dtype) for k, x in numbers.items())
    loss = _dice(p, q, t, tuple(axes), s, a, b)
    if class_weights is not None:
        classes = p.shape[-1:]
        check_shape("class_weights", class_weights, classes, "`predictions[0, 0]`")
        weights = jnp.asarray(class_weights).astype(p.dtype)
        loss = loss * jnp.broadcast_to(weights, loss.shape)
    loss = _without_background(loss, ignore_background)
    if reduction != "none":
        loss = (jnp.mean if reduction == "mean" else jnp.sum)(loss, -1)
    return one_value_each(loss, predictions)


def multiclass_generalized_dice_loss(
    predictions: Float[Array | np.ndarray, "..."],
    targets: RealArrayLike,
    *,
    smooth: RealScalarLike = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Float[Array, ""]:
    r"""[`eqopt.losses.dice_loss`][] with more weight on rare classes.

    $$\ell = \frac{1}{B C} \sum_{b, c} w_c\, \ell_{bc}, \qquad
      w_c \propto \frac{1}{n_c^2 + 10^{-7}}, \qquad \sum_c w_c = C$$

    where $n_c$ is the sum of the targets of class $c$ over all pixels of the batch. A
    class that is missing from the batch gets the largest weight among the classes that
    are present.

    **Arguments:**

    - `predictions`: logits, or probabilities without `apply_softmax`, a floating array
        of shape `(batch, ..., classes)`.
    - `targets`: one-hot, of the same shape.
    - `smooth`, `apply_softmax`: as in [`eqopt.losses.dice_loss`][].
    - `ignore_background`: whether to exclude class 0 from the mean. Its weight still
        counts for the sum of all weights. Defaults to `False`.

    **Returns:**

    The mean over classes and batch, a 0-d array of the dtype of `predictions`.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `smooth` is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{sudre2017generalised,
            author = {Sudre, Carole H. and Li, Wenqi and Vercauteren, Tom and
                      Ourselin, S{\'e}bastien and Cardoso, M. Jorge},
            title = {Generalised {Dice} Overlap as a Deep Learning Loss Function for
                     Highly Unbalanced Segmentations},
            booktitle = {Deep Learning in Medical Image Analysis},
            year = {2017},
            eprint = {1707.03237},
            archivePrefix = {arXiv},
        }
        ```
    """
    p, q, t = _prepared(predictions, targets, apply_softmax)
    s = as_scalar("smooth", smooth, p.dtype)
    half = jnp.asarray(0.5, p.dtype)
    loss = _dice(p, q, t, tuple(range(1, p.ndim - 1)), s, half, half)
    size = jnp.sum(t, tuple(range(t.ndim - 1)))
    is_there = size > 0
    weights = 1 / (jnp.square(size) + 1e-7)
    # Differs from Optax, where a missing class has weight 1e7, which makes all other
    # classes negligible.
    largest = jnp.max(weights, initial=0, where=is_there)
    largest = jnp.where(jnp.any(is_there), largest, 1)
    weights = jnp.where(is_there, weights, largest)
    weights = weights / jnp.sum(weights) * len(weights)
    loss = loss * jnp.broadcast_to(weights, loss.shape)
    loss = jnp.mean(_without_background(loss, ignore_background))
    return one_value_each(loss, predictions)


def binary_dice_loss(
    predictions: Float[Array | np.ndarray, "batch *shape"],
    targets: RealArrayLike,
    *,
    smooth: RealScalarLike = 1.0,
    apply_sigmoid: bool = True,
) -> Float[Array, " batch"]:
    r"""[`eqopt.losses.dice_loss`][] of one region.

    $$\ell = 1 - \frac{2 I + 2 s}{P + T + 2 s}, \qquad
      I = \sum_i p_i\, t_i, \quad P = \sum_i p_i, \quad T = \sum_i t_i$$

    **Arguments:**

    - `predictions`: logits, or probabilities $p$ without `apply_sigmoid`, a floating
        array of shape `(batch, ...)`; the sums are over all axes but the first.
    - `targets`: $t$, 0 or 1, of the same shape.
    - `smooth`: $s \ge 0$, a number or a 0-d array. Defaults to 1.
    - `apply_sigmoid`: whether $p$ is the sigmoid of `predictions`. Defaults to `True`.

    **Returns:**

    An array of shape `(batch,)` and of the dtype of `predictions`.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `smooth` is out of range or has axes.
    """
    x, t = widen_alike(predictions=predictions, targets=targets)
    s = as_scalar("smooth", smooth, x.dtype)
    p, q = _both_sigmoids(x) if apply_sigmoid else (x, 1 - x)
    half = jnp.asarray(0.5, x.dtype)
    loss = _dice(p, q, t, tuple(range(1, x.ndim)), s, half, half)
    return one_value_each(loss, predictions)


def _dice(p, q, t, axes, smooth, alpha, beta):
    # One minus the ratio is the share of what is wrong, without cancellation: P - I is
    # the sum of all p (1 - t), and T - I the sum of all q t, with q = 1 - p.
    both = jnp.sum(p * t, axes)
    exact = jnp.sum(alpha * (p * (1 - t)) + beta * (q * t), axes)
    # Without q, the derivatives are quicker to compute.
    wrong = jnp.sum(alpha * p + t * (beta - (alpha + beta) * p), axes)
    wrong = with_derivatives_of(wrong, lax.stop_gradient(exact))
    total = both + wrong + smooth
    return jnp.where(total == 0, 0, wrong / jnp.where(total == 0, 1, total))


def _prepared(predictions: Any, targets: Any, apply_softmax: bool):
    """Probabilities, 1 minus these, and targets, all with an axis of classes."""
    x, t = widen(predictions, targets)
    if x.ndim == t.ndim - 1 and t.shape[-1] == 1:
        x = x[..., None]
    if t.ndim == x.ndim - 1 and x.shape[-1] == 1:
        t = t[..., None]
    if x.ndim < 2:
        raise InputError(
            "`predictions` must have axes for the batch and the classes, but has "
            f"shape {x.shape}."
        )
    check_shape("targets", t, x.shape, "`predictions`")
    if not apply_softmax:
        return x, 1 - x, t
    if x.shape[-1] == 1:
        return *_both_sigmoids(x), t
    # An infinite logit would give NaN; the largest number gives the same softmax. (Not
    # `jnp.minimum`: fused with the sum, it ignores a NaN on a CPU.)
    x = jnp.where(x == jnp.inf, jnp.finfo(x.dtype).max, x)
    p = jax.nn.softmax(x, -1)
    # The sum of all other classes would have more digits than 1 - p, which is within
    # 1e-7. On an accelerator it would be one more pass over `p`, an eighth of the time.
    return p, 1 - p, t


def _both_sigmoids(x):
    return jax.nn.sigmoid(x), jax.nn.sigmoid(-x)


def _without_background(loss, is_ignored):
    return loss[..., 1:] if is_ignored and loss.shape[-1] > 1 else loss
