"""Losses for one of many classes: the cross entropy of a softmax."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ._inputs import (
    Axes,
    IntegerArrayLike,
    RealArrayLike,
    as_axes,
    as_mask,
    as_scalar,
    check_labels,
    check_same_shape,
    is_label,
    one_value_each,
    pick,
    widen,
)
from ._logarithms import log_normalizer, log_softmax, weighted


def softmax_cross_entropy(
    logits: Float[Array | np.ndarray, "..."],
    labels: RealArrayLike,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The cross entropy of a softmax, for target probabilities.

    $$\ell(x, y) = -\sum_i y_i \log p_i, \qquad p_i = \frac{e^{x_i}}{\sum_j e^{x_j}}$$

    Here $0 \log 0 = 0$: a class with a logit of minus infinity adds nothing, unless its
    label is positive. If all logits are minus infinity, all $p_i$ are 0.

    **Arguments:**

    - `logits`: $x$, a floating array.
    - `labels`: $y$, of the same shape: one-hot, or probabilities.
    - `axis`: the axis or axes of the classes, `None` for all of them. Defaults to the
        last.
    - `where`: the classes or examples to include, bools of the shape of `logits`, or
        without the axes of the classes. All others have $p_i = 0$, add nothing and get
        no gradient. Defaults to all.

    **Returns:**

    An array of the shape of `logits` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit.
    """
    _, loss, _ = _with_probabilities(
        "softmax_cross_entropy", logits, labels, axis, where
    )
    return one_value_each(loss, logits)


def safe_softmax_cross_entropy(
    logits: Float[Array | np.ndarray, "..."], labels: RealArrayLike
) -> Float[Array, "..."]:
    r"""The cross entropy of a softmax over the last axis.

    This is [`eqopt.losses.softmax_cross_entropy`][] over the last axis. Both are safe:
    they treat $0 \log 0$ as 0.

    **Arguments:**

    - `logits`: a floating array of shape `(..., classes)`.
    - `labels`: of the same shape: one-hot, or probabilities.

    **Returns:**

    An array of shape `(...)` and of the dtype of `logits`.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    _, loss, _ = _with_probabilities(
        "safe_softmax_cross_entropy", logits, labels, -1, None
    )
    return one_value_each(loss, logits)


def softmax_cross_entropy_with_integer_labels(
    logits: Float[Array | np.ndarray, "..."],
    labels: IntegerArrayLike,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The cross entropy of a softmax, for integer labels.

    $$\ell(x, k) = \log \sum_j e^{x_j} - x_k$$

    A label out of range, including -1, makes the loss of its example NaN and the
    gradient zero. You can use such labels for padding:

    !!! example

        ```python
        losses = eqopt.losses.softmax_cross_entropy_with_integer_labels(
            logits, labels, where=labels >= 0
        )
        loss = jnp.mean(losses, where=labels >= 0)
        ```

    **Arguments:**

    - `logits`: $x$, a floating array.
    - `labels`: $k$, integers from 0 to the number of classes minus one, of the shape of
        `logits` without `axis`. With several axes, $k$ counts the elements of these
        axes in the order in which they are given, the last one fastest.
    - `axis`: the axis or axes of the classes, `None` for all of them. Defaults to the
        last.
    - `where`: the classes or examples to include, bools of the shape of `logits`, or
        without the axes of the classes. Other classes are not in the sum, and must not
        be labels. Without any class, the loss is 0. Defaults to all.

    **Returns:**

    An array of the shape of `labels` and of the dtype of `logits`.

    **Raises:**

    A `ValueError` if shapes do not fit.
    """
    owner = "softmax_cross_entropy_with_integer_labels"
    axes = as_axes(owner, axis, np.ndim(logits))
    check_labels(owner, "logits", logits, labels, axes)
    (x,) = widen(logits)
    k = jnp.asarray(labels)
    mask = as_mask(owner, where, x.shape, axes)
    if axes != (x.ndim - 1,):  # the classes come last, in one axis
        last = tuple(range(x.ndim - len(axes), x.ndim))
        shape = (*k.shape, -1)
        x = jnp.moveaxis(x, axes, last).reshape(shape)
        mask = jnp.moveaxis(mask, axes, last).reshape(shape)
    is_there = jnp.any(mask, -1)
    # Masked values may be NaN, which must not reach the gradient of the other terms.
    x = jnp.where(is_there[..., None], x, 0)
    loss = log_normalizer(x, (k.ndim,), mask)[..., 0] - pick(x, k)
    loss = jnp.where(is_label(k, x.shape[-1]), loss, jnp.nan)
    return one_value_each(jnp.where(is_there, loss, 0), logits)


def poly_loss_cross_entropy(
    logits: Float[Array | np.ndarray, "..."],
    labels: RealArrayLike,
    *,
    epsilon: RealScalarLike = 2.0,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The Poly-1 loss: cross entropy plus a term that is linear in the probability.

    $$\ell(x, y) = \sum_i y_i \left(-\log p_i + \epsilon\, (1 - p_i)\right)$$

    **Arguments:**

    - `logits`: $x$, a floating array.
    - `labels`: $y$, of the same shape: one-hot, or probabilities.
    - `epsilon`: $\epsilon$, the additional weight of $1 - p$, the first term of the
        series of $-\log p$, a number or a 0-d array. Defaults to 2, the paper's value
        for ImageNet; the paper uses -1 for detection.
    - `axis`, `where`: as in [`eqopt.losses.softmax_cross_entropy`][].

    **Returns:**

    An array of the shape of `logits` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `epsilon` is not finite or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{leng2022polyloss,
            author = {Leng, Zhaoqi and Tan, Mingxing and Liu, Chenxi and Cubuk, Ekin
            Dogus
                      and Shi, Xiaojie and Cheng, Shuyang and Anguelov, Dragomir},
            title = {{PolyLoss}: A Polynomial Expansion Perspective of Classification
            Loss
                     Functions},
            booktitle = {International Conference on Learning Representations},
            year = {2022},
            eprint = {2204.12511},
            archivePrefix = {arXiv},
        }
        ```
    """
    owner = "poly_loss_cross_entropy"
    dtype, loss, miss = _with_probabilities(owner, logits, labels, axis, where)
    factor = as_scalar(owner, "epsilon", epsilon, dtype, -np.inf)
    return one_value_each(loss + factor * miss, logits)


def _with_probabilities(
    owner: str, logits: Any, labels: Any, axis: Any, where: Any
) -> tuple[Any, Float[Array, "*out"], Float[Array, "*out"]]:
    r"""The dtype, $-\sum y_i \log p_i$, and $\sum y_i (1 - p_i)$."""
    check_same_shape(owner, "logits", logits, labels=labels, or_number=False)
    x, y = widen(logits, labels)
    axes = as_axes(owner, axis, x.ndim)
    mask = as_mask(owner, where, x.shape, axes)
    log_p = log_softmax(x, axes, mask)
    y = jnp.where(mask, y, 0)
    loss = -jnp.sum(weighted(y, log_p), axes)
    return x.dtype, loss, jnp.sum(y * (1 - jnp.exp(log_p)), axes)
