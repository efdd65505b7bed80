"""Losses of distributions: cross entropies, rankings, and divergences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._types import Interval, RealScalarLike
from ..numerics._numerics import nan_where
from ._inputs import (
    Axes,
    IntegerArrayLike,
    RealArrayLike,
    as_axes,
    as_mask,
    as_scalar,
    check_labels,
    excess,
    is_class,
    is_label,
    log_softmax,
    log_sum,
    one_value_each,
    pick,
    small_excess,
    weighted,
    widen,
    widen_alike,
    with_derivatives_of,
)


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
    log_p, y, axes = _prepared(logits, labels, axis, where)
    return one_value_each(-jnp.sum(weighted(y, log_p), axes), logits)


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
    return softmax_cross_entropy(logits, labels)


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
    axes = as_axes(axis, np.ndim(logits))
    check_labels("logits", logits, labels, axes)
    x, k = jnp.asarray(logits), jnp.asarray(labels)
    mask = as_mask(where, x.shape, axes)
    if axes != (x.ndim - 1,):  # the classes come last, in one axis
        last = tuple(range(x.ndim - len(axes), x.ndim))
        shape = (*k.shape, -1)
        x = jnp.moveaxis(x, axes, last).reshape(shape)
        mask = jnp.moveaxis(mask, axes, last).reshape(shape)
    is_there = jnp.any(mask, -1)
    # Masked values may be NaN, which must not reach the gradient of the other terms.
    x = jnp.where(is_there[..., None], x, 0)
    # The score of the label is looked up first. An accelerator would make a wide copy
    # of all scores to look it up there.
    x, own = widen(x, pick(x, k))
    # log(1 + sum_j exp(x_j - x_k)) over the other classes is accurate if it is small.
    top, log = log_sum(x, (k.ndim,), mask & ~is_class(k, x.shape[-1]))
    loss = jax.nn.softplus((top - own[..., None]) + log)[..., 0]
    loss = nan_where(~is_label(k, x.shape[-1]), loss)
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
    log_p, y, axes = _prepared(logits, labels, axis, where)
    finite = Interval(includes_low=False, includes_high=False)
    factor = as_scalar("epsilon", epsilon, log_p.dtype, finite)
    # As in `weighted`: a class without a label may be impossible.
    log_p = jnp.where((y == 0) & jnp.isinf(log_p), 0, log_p)
    return one_value_each(jnp.sum(y * _poly(log_p, factor), axes), logits)


@jax.custom_jvp
def _poly(log_p, epsilon):
    # With epsilon = -1, the first terms of both series cancel. They are not computed.
    return excess(-log_p) - (1 + epsilon) * jnp.expm1(log_p)


@_poly.defjvp
def _poly_jvp(primals: Any, tangents: Any) -> Any:
    log_p, epsilon = primals
    by_log_p = -1 - epsilon * jnp.exp(log_p)
    slope = by_log_p * tangents[0] - jnp.expm1(log_p) * tangents[1]
    return _poly(log_p, epsilon), slope


def _prepared(logits: Any, labels: Any, axis: Any, where: Any):
    r"""$\log p$, the labels, which are 0 at masked elements, and the axes."""
    x, y = widen_alike(logits=logits, labels=labels)
    axes = as_axes(axis, x.ndim)
    mask = as_mask(where, x.shape, axes)
    return log_softmax(x, axes, mask), jnp.where(mask, y, 0), axes


def ranking_softmax_loss(
    logits: Float[Array | np.ndarray, "*lists items"],
    labels: RealArrayLike,
    *,
    where: RealArrayLike | None = None,
    weights: RealArrayLike | None = None,
    reduce_fn: Callable[..., Any] | None = jnp.mean,
) -> Float[Array, "..."]:
    r"""The ranking softmax loss of ListNet: relevant items should have high scores.

    $$\ell(s, y) = -\sum_i w_i\, y_i \log \frac{e^{s_i}}{\sum_j e^{s_j}}$$

    **Arguments:**

    - `logits`: $s$, the scores of the items, a floating array of shape `(..., items)`.
    - `labels`: $y \ge 0$, the relevance of the items, an array of the same shape.
    - `where`: the items to include, bools of the same shape, or of shape `(...)` for
        whole lists. Defaults to all.
    - `weights`: $w$, an array of the same shape. Defaults to 1.
    - `reduce_fn`: how to reduce the losses of all lists to one, called as
        `reduce_fn(losses, where=valid)`, where `valid` is true for lists with items, or
        `None` without `where`. Defaults to `jnp.mean`, which is 0 here if no list has
        items. With `None`, all losses are returned, and 0 for an empty list.

    **Returns:**

    The result of `reduce_fn` for an array of shape `(...)`, in the dtype of `logits`.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{cao2007learning,
            author = {Cao, Zhe and Qin, Tao and Liu, Tie-Yan and Tsai, Ming-Feng and
                      Li, Hang},
            title = {Learning to Rank: From Pairwise Approach to Listwise Approach},
            booktitle = {International Conference on Machine Learning},
            year = {2007},
        }
        ```
    """
    s, y = widen_alike(logits=logits, labels=labels)
    w = 1.0 if weights is None else weights
    s, y, w = widen_alike(or_number=True, logits=s, labels=y, weights=w)
    axes = (s.ndim - 1,)
    mask = as_mask(where, s.shape, axes)
    relevance = jnp.where(mask, y * jnp.broadcast_to(w, y.shape), 0)
    losses = -jnp.sum(weighted(relevance, log_softmax(s, axes, mask)), -1)
    has_items = jnp.any(mask, -1)
    if reduce_fn is None:
        loss = losses  # an empty list has no term
    elif reduce_fn is jnp.mean:
        count = jnp.sum(has_items).astype(s.dtype)
        loss = jnp.sum(losses) / jnp.maximum(count, 1)
    else:
        there = None if where is None else has_items
        loss = jnp.asarray(reduce_fn(losses, where=there))
    return one_value_each(loss, logits)


def smooth_labels(
    labels: Float[Array | np.ndarray, "*shape"],
    alpha: RealScalarLike,
    *,
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "*shape"]:
    r"""Mixes labels with the uniform distribution: $(1 - \alpha)\, y_i + \alpha / K$.

    !!! example

        ```python
        labels = eqopt.losses.smooth_labels(jax.nn.one_hot(classes, 10), 0.1)
        losses = eqopt.losses.softmax_cross_entropy(logits, labels)
        ```

    **Arguments:**

    - `labels`: $y$, a floating array, one-hot or probabilities.
    - `alpha`: $\alpha \in [0, 1]$, a number or a 0-d array.
    - `axis`: the axis or axes of the $K$ classes, `None` for all of them. Defaults to
        the last.
    - `where`: the classes to include, bools of the shape of `labels`, or without the
        axes of the classes. Only these count in $K$; all others become 0. Defaults to
        all.

    **Returns:**

    An array of the shape and dtype of `labels`.

    **Raises:**

    A `ValueError` if shapes do not fit, or if `alpha` is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{muller2019when,
            author = {M{\"u}ller, Rafael and Kornblith, Simon and Hinton, Geoffrey},
            title = {When Does Label Smoothing Help?},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
            eprint = {1906.02629},
            archivePrefix = {arXiv},
        }
        ```
    """
    (y,) = widen(labels)
    axes = as_axes(axis, y.ndim)
    mask = as_mask(where, y.shape, axes)
    share = as_scalar("alpha", alpha, y.dtype, Interval(0, 1))
    number = jnp.sum(mask, axes, keepdims=True).astype(y.dtype)
    mixed = (1 - share) * jnp.where(mask, y, 0) + share / jnp.maximum(number, 1)
    return one_value_each(jnp.where(mask, mixed, 0), labels)


#
# Kullback-Leibler divergences between distributions
#


def kl_divergence(
    log_predictions: Float[Array | np.ndarray, "..."],
    targets: Float[Array | np.ndarray, "..."],
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The Kullback-Leibler divergence of predictions from targets.

    $$D(q \,\|\, p) = \sum_i q_i\, (\log q_i - \log p_i)$$

    Here $0 \log 0 = 0$: where $q_i = 0$, nothing is added for any $p_i$, and all
    derivatives are 0.

    If $p$ and $q$ have the same sum, as distributions have, the divergence is never
    negative, and accurate for close ones. Sums count as the same if they differ only by
    rounding. Otherwise, the formula may be negative.

    **Arguments:**

    - `log_predictions`: $\log p$, a floating array.
    - `targets`: $q \ge 0$, a floating array of the same shape.
    - `axis`: the axis or axes of the distributions, `None` for all of them. Defaults to
        the last.
    - `where`: the elements to include, bools of the shape of `targets`, or without the
        axes of the distributions. Defaults to all.

    **Returns:**

    An array of the shape of `log_predictions` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @article{kullback1951information,
            author = {Kullback, Solomon and Leibler, Richard A.},
            title = {On Information and Sufficiency},
            journal = {The Annals of Mathematical Statistics},
            volume = {22},
            number = {1},
            pages = {79--86},
            year = {1951},
        }
        ```
    """
    both = {"log_predictions": log_predictions, "targets": targets}
    log_p, q, axes = _masked(axis, where, 0, **both)
    unit = _rounding_unit(log_predictions, targets)
    loss = _divergence(log_p, q, _log_ratio(log_p, q), axes, unit)
    return one_value_each(loss, log_predictions)


def kl_divergence_with_log_targets(
    log_predictions: Float[Array | np.ndarray, "..."],
    log_targets: Float[Array | np.ndarray, "..."],
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""[`eqopt.losses.kl_divergence`][] with logarithmic targets.

    $$D(q \,\|\, p) = \sum_i e^{\log q_i} (\log q_i - \log p_i)$$

    **Arguments:**

    - `log_predictions`: $\log p$, a floating array.
    - `log_targets`: $\log q$, a floating array of the same shape. It may be minus
        infinity.
    - `axis`, `where`: as in [`eqopt.losses.kl_divergence`][].

    **Returns:**

    An array of the shape of `log_predictions` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit.
    """
    both = {"log_predictions": log_predictions, "log_targets": log_targets}
    log_p, log_q, axes = _masked(axis, where, -jnp.inf, **both)
    unit = _rounding_unit(log_predictions, log_targets)
    q = jnp.exp(log_q)
    d = jnp.where(_is_zero(q), 0, log_q) - jnp.where(_is_zero(q), 0, log_p)
    loss = _divergence(log_p, q, d, axes, unit)
    return one_value_each(loss, log_predictions)


def generalized_kl_divergence(
    log_predictions: Float[Array | np.ndarray, "..."],
    targets: Float[Array | np.ndarray, "..."],
    axis: Axes = -1,
    where: RealArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""The Kullback-Leibler divergence of vectors that need not sum to one.

    $$D(q \,\|\, p) = \sum_i \left(q_i\, (\log q_i - \log p_i) - q_i + p_i\right)$$

    It is never negative, and 0 only if both are equal. It is the Bregman divergence of
    $\sum_i (x_i \log x_i - x_i)$.

    **Arguments:**

    - `log_predictions`: $\log p$, a floating array.
    - `targets`: $q \ge 0$, a floating array of the same shape.
    - `axis`, `where`: as in [`eqopt.losses.kl_divergence`][].

    **Returns:**

    An array of the shape of `log_predictions` without `axis`, of its dtype.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @article{bregman1967relaxation,
            author = {Bregman, Lev M.},
            title = {The Relaxation Method of Finding the Common Point of Convex Sets
            and
                     Its Application to the Solution of Problems in Convex Programming},
            journal = {USSR Computational Mathematics and Mathematical Physics},
            volume = {7},
            number = {3},
            pages = {200--217},
            year = {1967},
        }
        ```
    """
    both = {"log_predictions": log_predictions, "targets": targets}
    log_p, q, axes = _masked(axis, where, 0, **both)
    return one_value_each(jnp.sum(_generalized(log_p, q), axes), log_predictions)


def _divergence(log_p, q, d, axes, unit):
    """The sum of `q d`, where `d` is `log q - log p`, or 0 where `q` is.

    If `p` and `q` have the same sum, the terms of the generalized divergence give the
    same loss. They are never negative, so they do not cancel if `p` and `q` are close.
    The sums count as equal if they differ only by rounding: of the computation, or,
    where the loss is no larger itself, of the arguments, by the relative size `unit`.
    """
    loss = jnp.sum(q * d, axes)
    p = jnp.exp(log_p)
    gap = jnp.abs(jnp.sum(q - p, axes))
    # Zero times infinity must not occur: the logarithm of a positive `p` is smaller.
    size = 2 * jnp.sum(q + p + p * jnp.minimum(jnp.abs(log_p), 1e3), axes)
    fine = float(jnp.finfo(log_p.dtype).eps)
    is_equal = gap < fine * size
    if unit > fine:
        is_equal = is_equal | ((gap < unit * size) & (loss < unit * size))
    value = jnp.where(is_equal, jnp.sum(_gaps(p, q, d, _is_zero(q)), axes), loss)
    return with_derivatives_of(loss, lax.stop_gradient(value))


@jax.custom_jvp
def _generalized(log_p, q):
    return _gaps(jnp.exp(log_p), q, _log_ratio(log_p, q), _is_zero(q))


@_generalized.defjvp
def _generalized_jvp(primals: Any, tangents: Any) -> Any:
    log_p, q = primals
    by_q = jnp.where(_is_zero(q), -1, _log_ratio(log_p, q))
    slope = (jnp.exp(log_p) - q) * tangents[0] + by_q * tangents[1]
    return _generalized(log_p, q), slope


def _log_ratio(log_p, q):
    return jnp.log(jnp.where(_is_zero(q), 1, q)) - jnp.where(_is_zero(q), 0, log_p)


def _is_zero(q: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Also where `q` is denormal: a CPU may compute minus infinity as its logarithm."""
    return jnp.abs(q) < jnp.finfo(q.dtype).tiny


def _gaps(p, q, d, is_zero):
    """`q d - q + p`, with `d` the logarithm of `q / p` unless `q` is zero."""
    is_close = (jnp.abs(d) < 0.5) & ~is_zero
    close = q * small_excess(jnp.where(is_close, d, 0))
    return jnp.where(is_close, close, q * d - q + p)


def _rounding_unit(*arrays: Any) -> float:
    """The relative distance of neighbours in the coarsest dtype."""
    dtypes = [jax.dtypes.canonicalize_dtype(x.dtype) for x in arrays]
    return max(float(jnp.finfo(x).eps) for x in dtypes)


def _masked(axis: Any, where: Any, masked_q: float, **both: Any):
    """Both arrays and the axes. Masked elements have p = q = 0."""
    log_p, q = widen_alike(**both)
    axes = as_axes(axis, q.ndim)
    mask = as_mask(where, q.shape, axes)
    return jnp.where(mask, log_p, -jnp.inf), jnp.where(mask, q, masked_q), axes
