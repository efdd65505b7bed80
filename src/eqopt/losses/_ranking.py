"""Losses for the order of the items of a list."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._inputs import (
    RealArrayLike,
    as_mask,
    check_ndim,
    check_same_shape,
    one_value_each,
    widen,
)
from ._logarithms import log_softmax, weighted


def ranking_softmax_loss(
    logits: Float[Array | np.ndarray, "..."],
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
    owner = "ranking_softmax_loss"
    check_ndim(owner, "logits", logits, 1, "the last one for the items")
    weights = 1.0 if weights is None else weights
    check_same_shape(owner, "logits", logits, or_number=False, labels=labels)
    check_same_shape(owner, "logits", logits, weights=weights)
    s, y, w = widen(logits, labels, weights)
    axes = (s.ndim - 1,)
    mask = as_mask(owner, where, s.shape, axes)
    relevance = jnp.where(mask, y * jnp.broadcast_to(w, y.shape), 0)
    losses = -jnp.sum(weighted(relevance, log_softmax(s, axes, mask)), -1)
    has_items = jnp.any(mask, -1)
    if reduce_fn is None:
        loss = losses  # an empty list has no term
    elif reduce_fn is jnp.mean:
        count = jnp.sum(has_items).astype(s.dtype)
        loss = jnp.sum(losses) / jnp.maximum(count, 1)
    else:
        loss = jnp.asarray(
            reduce_fn(losses, where=None if where is None else has_items)
        )
    return one_value_each(loss, logits)
