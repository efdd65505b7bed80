"""Losses of scores that are compared to the best score, or to another maximum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._errors import InputError, naming
from ..numerics._numerics import max_or_nan, nan_where
from ._inputs import (
    IntegerArrayLike,
    RealArrayLike,
    check_labels,
    is_class,
    is_label,
    one_value_each,
    pick,
    weighted,
    widen,
    widen_alike,
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
    x, k = _prepared(scores, labels)
    best = max_or_nan(jnp.where(is_class(k, x.shape[-1]), -jnp.inf, x), -1)
    # The difference comes first: large scores would absorb the 1.
    return _finished(jnp.maximum(best - pick(x, k) + 1, 0), k, scores)


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
    x, k = _prepared(scores, labels)
    own = pick(x, k)
    # No score is higher than infinity.
    behind = jnp.where(own == jnp.inf, 0, max_or_nan(x, -1) - own)
    return _finished(behind, k, scores)


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
    x, k = _prepared(scores, labels)
    return _finished(_sparsemax_loss(x, is_class(k, x.shape[-1])), k, scores)


@jax.custom_jvp
def _sparsemax_loss(x, is_own):
    r"""Half of the squared distance from $p$ to the label, plus $t - x_k$ if positive.

    With $p_i = \max(x_i - t, 0)$, this is the loss above, without differences of large
    numbers: in the distance, $1 - p_k$ is the sum of all other $p_i$.
    """
    p, t = _projection(x)
    wrong = jnp.where(is_own, 0, p)
    distance = jnp.square(jnp.sum(wrong, -1)) + jnp.sum(jnp.square(wrong), -1)
    own = jnp.sum(jnp.where(is_own, x, 0), -1)
    top = max_or_nan(x, -1)
    behind = jnp.where(own == top, 0, top - own) - 1 + t[..., 0]
    return distance / 2 + jnp.maximum(behind, 0)


@_sparsemax_loss.defjvp
def _sparsemax_loss_jvp(primals: Any, tangents: Any) -> Any:
    x, is_own = primals
    slope = _sparsemax(x) - is_own.astype(x.dtype)
    return _sparsemax_loss(x, is_own), jnp.sum(slope * tangents[0], -1)


@jax.custom_jvp
def _sparsemax(x: Float[Array, "*shape classes"]) -> Float[Array, "*shape classes"]:
    return _projection(x)[0]


@_sparsemax.defjvp
def _sparsemax_jvp(primals: Any, tangents: Any) -> Any:
    [dx] = tangents
    p = _sparsemax(*primals)
    number = jnp.sum(p > 0, -1, keepdims=True).astype(p.dtype)
    mean = jnp.sum(jnp.where(p > 0, dx, 0), -1, keepdims=True) / number
    return p, jnp.where(p > 0, dx - mean, 0)


def _projection(x):
    """The point of the simplex nearest to `x`, and its threshold.

    The point is `max(x - t, 0)`, with `t` such that the sum is one. Sorting finds the
    nonzero classes. All numbers are relative to the largest `x` minus 1. So the largest
    is 1, which drops out of the equation for `t`: `t` has all the digits of the others.
    """
    top = max_or_nan(x, -1, keepdims=True)
    x = jnp.where(x == top, 1, jnp.maximum(x - top + 1, 0))  # `top` may be infinite
    descending = -jnp.sort(-x, axis=-1)
    others = jnp.cumsum(descending.at[..., 0].set(0), -1)
    count = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    count = count.reshape((1,) * (x.ndim - 1) + (-1,))
    number = jnp.sum(descending * count > others, -1, keepdims=True)
    t = jnp.take_along_axis(others, number - 1, axis=-1) / number.astype(x.dtype)
    return jnp.maximum(x - t, 0), t


def _prepared(scores: Any, labels: Any):
    check_labels("scores", scores, labels, (np.ndim(scores) - 1,))
    (x,) = widen(scores)
    return x, jnp.asarray(labels)


def _finished(loss: Any, k: Any, scores: Any) -> Float[Array, "..."]:
    loss = nan_where(~is_label(k, scores.shape[-1]), loss)
    return one_value_each(loss, scores)


def make_fenchel_young_loss(
    max_fun: Callable[..., Any],
) -> Callable[..., Float[Array, "..."]]:
    r"""The Fenchel-Young loss of a function that is defined as a maximum.

    $$\ell(s, y) = f(s) - y \cdot s, \qquad
      f(s) = \max_p \left(p \cdot s - \Omega(p)\right)$$

    Its gradient is $p - y$ with the maximizing $p$, which is the gradient of $f$. The
    constant $\Omega(y)$ of the paper is omitted. If $\Omega$ is an entropy, it is 0 for
    one-hot $y$, and then the loss is never negative. It is a difference of two numbers,
    so a small loss of large scores has the rounding errors of $f$.

    !!! example

        ```python
        from jax.scipy.special import logsumexp

        cross_entropy = eqopt.losses.make_fenchel_young_loss(logsumexp)
        perceptron = eqopt.losses.make_fenchel_young_loss(jnp.max)
        losses = cross_entropy(logits, jax.nn.one_hot(labels, 10))
        ```

    **Arguments:**

    - `max_fun`: $f$, a function of a vector that returns a scalar.

    **Returns:**

    A function `(scores, targets, *args, **kwargs)`. `scores`, a floating array, and
    `targets` have shape `(..., n)`; `max_fun` is called as
    `max_fun(scores, *args, **kwargs)` for each vector of scores, in at least float32.
    The losses have shape `(...)` and the dtype of `scores`. A score of minus infinity
    adds nothing where the target is 0.

    **Raises:**

    The function raises a `ValueError` if shapes do not fit, or if `max_fun` does not
    return a scalar.

    ??? cite "Reference"

        ```bibtex
        @article{blondel2020learning,
            author = {Blondel, Mathieu and Martins, Andr{\'e} F. T. and Niculae, Vlad},
            title = {Learning with {Fenchel-Young} Losses},
            journal = {Journal of Machine Learning Research},
            volume = {21},
            number = {35},
            pages = {1--69},
            year = {2020},
        }
        ```
    """

    @naming("eqopt.losses.make_fenchel_young_loss")
    def fenchel_young_loss(
        scores: Float[Array | np.ndarray, "..."],
        targets: RealArrayLike,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, "..."]:
        s, y = widen_alike(scores=scores, targets=targets)
        rows = s.reshape(-1, s.shape[-1]) if s.size else jnp.zeros((0, s.shape[-1]))
        best = jax.vmap(lambda row: max_fun(row, *args, **kwargs))(rows)
        if best.ndim != 1:
            raise InputError(
                "`max_fun` must return the maximum, one number for a vector, such as "
                f"`logsumexp`, but returned an array of shape {best.shape[1:]}."
            )
        best = best.astype(s.dtype).reshape(s.shape[:-1])
        return one_value_each(best - jnp.sum(weighted(y, s), -1), scores)

    return fenchel_young_loss
