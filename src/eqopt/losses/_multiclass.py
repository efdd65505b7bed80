"""Multiclass losses with margins, from scores and integer labels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer

from ._inputs import (
    IntegerArrayLike,
    check_labels,
    is_label,
    one_value_each,
    pick,
    widen,
)


def multiclass_hinge_loss(
    scores: Float[Array | np.ndarray, "*shape classes"], labels: IntegerArrayLike
) -> Float[Array, "*shape"]:
    r"""The hinge loss of Crammer and Singer.

    $$\ell(x, k) = \max_i \left(x_i + [i \ne k]\right) - x_k$$

    It is 0 where the score of the label is at least 1 higher than all others. A label
    out of range makes the loss of its example NaN, and the gradient zero.

    **Arguments:**

    - `scores`: $x$, a floating array of shape `(..., classes)`.
    - `labels`: $k$, integers from 0 to `classes - 1`, of shape `(...)`.

    **Returns:**

    An array of shape `(...)` and of the dtype of `scores`.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @article{crammer2001algorithmic,
            author = {Crammer, Koby and Singer, Yoram},
            title = {On the Algorithmic Implementation of Multiclass Kernel-based Vector
                     Machines},
            journal = {Journal of Machine Learning Research},
            volume = {2},
            pages = {265--292},
            year = {2001},
        }
        ```
    """
    x, k = _prepared("multiclass_hinge_loss", scores, labels)
    hot = jax.nn.one_hot(k, x.shape[-1], dtype=x.dtype)
    loss = jnp.max(x + 1 - hot, -1) - pick(x, k)
    return _finished(loss, k, scores)


def multiclass_perceptron_loss(
    scores: Float[Array | np.ndarray, "*shape classes"], labels: IntegerArrayLike
) -> Float[Array, "*shape"]:
    r"""The multiclass perceptron loss, $\max_i x_i - x_k$.

    It is 0 where no score is higher than the score of the label. A label out of range
    makes the loss of its example NaN, and the gradient zero.

    **Arguments:**

    - `scores`: $x$, a floating array of shape `(..., classes)`.
    - `labels`: $k$, integers from 0 to `classes - 1`, of shape `(...)`.

    **Returns:**

    An array of shape `(...)` and of the dtype of `scores`.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{collins2002discriminative,
            author = {Collins, Michael},
            title = {Discriminative Training Methods for Hidden {Markov} Models: Theory
                     and Experiments with Perceptron Algorithms},
            booktitle = {Conference on Empirical Methods in Natural Language
            Processing}, year = {2002},
        }
        ```
    """
    x, k = _prepared("multiclass_perceptron_loss", scores, labels)
    return _finished(jnp.max(x, -1) - pick(x, k), k, scores)


def multiclass_sparsemax_loss(
    scores: Float[Array | np.ndarray, "*shape classes"], labels: IntegerArrayLike
) -> Float[Array, "*shape"]:
    r"""The sparsemax loss: like cross entropy, but 0 for margins of at least 1.

    $$\ell(x, k) = \max_{p \in \Delta}
        \left(p \cdot x + \tfrac12 (1 - |p|^2)\right) - x_k$$

    where $\Delta$ is the simplex of all probabilities. The maximizing $p$ is the
    *sparsemax* of $x$, the point of $\Delta$ nearest to $x$, in which many $p_i$ are
    exactly 0. The gradient is $p$ minus the one-hot label. A label out of range makes
    the loss of its example NaN, and the gradient zero.

    **Arguments:**

    - `scores`: $x$, a floating array of shape `(..., classes)`.
    - `labels`: $k$, integers from 0 to `classes - 1`, of shape `(...)`.

    **Returns:**

    An array of shape `(...)` and of the dtype of `scores`.

    **Raises:**

    A `ValueError` if shapes do not fit.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{martins2016softmax,
            author = {Martins, Andr{\'e} F. T. and Astudillo, Ram{\'o}n Fernandez},
            title = {From Softmax to Sparsemax: A Sparse Model of Attention and
                     Multi-Label Classification},
            booktitle = {International Conference on Machine Learning},
            year = {2016},
            eprint = {1602.02068},
            archivePrefix = {arXiv},
        }
        ```
    """
    x, k = _prepared("multiclass_sparsemax_loss", scores, labels)
    p = _sparsemax(x)
    ahead = jnp.where(p > 0, x - pick(x, k)[..., None], 0)
    loss = jnp.sum(p * ahead, -1) + (1 - jnp.sum(p * p, -1)) / 2
    return _finished(jnp.maximum(loss, 0), k, scores)


def _sparsemax(x: Float[Array, "*shape classes"]) -> Float[Array, "*shape classes"]:
    """The point of the simplex nearest to `x`.

    It is `max(x - t, 0)`, with `t` such that the sum is one. Sorting finds the nonzero
    classes. For these, `t` is linear and has simple derivatives.
    """
    x = x - lax.stop_gradient(jnp.max(x, -1, keepdims=True))
    descending = -jnp.sort(-lax.stop_gradient(x), axis=-1)
    count = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    excess = jnp.cumsum(descending, -1) - 1
    is_in = descending * count.reshape((1,) * (x.ndim - 1) + (-1,)) > excess
    number = jnp.sum(is_in, -1, keepdims=True)
    lowest = jnp.take_along_axis(descending, jnp.maximum(number - 1, 0), axis=-1)
    chosen = lax.stop_gradient(x) >= lowest
    number = jnp.sum(chosen, -1, keepdims=True).astype(x.dtype)
    threshold = (jnp.sum(jnp.where(chosen, x, 0), -1, keepdims=True) - 1) / number
    return jnp.where(chosen, x - threshold, 0)


def _prepared(
    owner: str, scores: Any, labels: Any
) -> tuple[Float[Array, "*shape classes"], Integer[Array, "*shape"]]:
    check_labels(owner, "scores", scores, labels, (np.ndim(scores) - 1,))
    (x,) = widen(scores)
    if x.shape[-1] == 0:
        raise ValueError(
            f"{owner}: `scores` must have at least one class, but has shape {x.shape}."
        )
    return x, jnp.asarray(labels)


def _finished(loss: Any, k: Any, scores: Any) -> Float[Array, "..."]:
    loss = jnp.where(is_label(k, scores.shape[-1]), loss, jnp.nan)
    return one_value_each(loss, scores)
