"""Losses of separate numbers: errors of predictions, and one of two classes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Interval, RealScalarLike
from ._inputs import (
    RealArrayLike,
    as_scalar,
    one_value_each,
    weighted,
    widen,
    widen_alike,
)


def squared_error(
    predictions: Float[Array | np.ndarray, "*shape"],
    targets: RealArrayLike | None = None,
) -> Float[Array, "*shape"]:
    r"""The squared error $(x - y)^2$.

    !!! example

        ```python
        loss = jnp.mean(eqopt.losses.squared_error(predictions, targets))
        ```

    **Arguments:**

    - `predictions`: $x$, a floating array of any shape.
    - `targets`: $y$, of the same shape, or one number. Defaults to 0.

    **Returns:**

    An array of the shape and dtype of `predictions`.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    e = _errors(predictions, targets)
    return one_value_each(e * e, predictions)


def l2_loss(
    predictions: Float[Array | np.ndarray, "*shape"],
    targets: RealArrayLike | None = None,
) -> Float[Array, "*shape"]:
    r"""Half of the squared error, $\frac12 (x - y)^2$, whose derivative is the error.

    **Arguments:**

    - `predictions`: $x$, a floating array of any shape.
    - `targets`: $y$, of the same shape, or one number. Defaults to 0.

    **Returns:**

    An array of the shape and dtype of `predictions`.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    e = _errors(predictions, targets)
    return one_value_each(e * e / 2, predictions)


def huber_loss(
    predictions: Float[Array | np.ndarray, "*shape"],
    targets: RealArrayLike | None = None,
    *,
    delta: RealScalarLike = 1.0,
) -> Float[Array, "*shape"]:
    r"""The Huber loss: quadratic for small errors, linear for large ones.

    $$\ell(x, y) = \begin{cases}
        \frac12 e^2 & |e| \le \delta \\
        \delta\, (|e| - \frac12 \delta) & |e| > \delta
    \end{cases} \qquad e = x - y$$

    Its derivative is the derivative of [`eqopt.losses.l2_loss`][], clipped to
    $[-\delta, \delta]$.

    **Arguments:**

    - `predictions`: $x$, a floating array of any shape.
    - `targets`: $y$, of the same shape, or one number. Defaults to 0.
    - `delta`: $\delta \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    An array of the shape and dtype of `predictions`.

    **Raises:**

    A `ValueError` if the shapes differ, or if `delta` is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @article{huber1964robust,
            author = {Huber, Peter J.},
            title = {Robust Estimation of a Location Parameter},
            journal = {The Annals of Mathematical Statistics},
            volume = {35},
            number = {1},
            pages = {73--101},
            year = {1964},
        }
        ```
    """
    e = _errors(predictions, targets)
    bound = as_scalar("delta", delta, e.dtype)
    # One formula for both cases, without the square of a large error, which could
    # overflow and make the derivative NaN.
    clipped = jnp.clip(e, -bound, bound)
    return one_value_each(clipped * (e - clipped / 2), predictions)


def log_cosh(
    predictions: Float[Array | np.ndarray, "*shape"],
    targets: RealArrayLike | None = None,
) -> Float[Array, "*shape"]:
    r"""The logarithm of the hyperbolic cosine of the error, $\log\cosh(x - y)$.

    It is about $\frac12 e^2$ for small errors $e$ and $|e| - \log 2$ for large ones,
    like [`eqopt.losses.huber_loss`][], but smooth: its derivative is $\tanh e$.

    **Arguments:**

    - `predictions`: $x$, a floating array of any shape.
    - `targets`: $y$, of the same shape, or one number. Defaults to 0.

    **Returns:**

    An array of the shape and dtype of `predictions`.

    **Raises:**

    A `ValueError` if the shapes differ.

    ??? cite "Reference"

        ```bibtex
        @misc{chen2019log,
            author = {Chen, Pengfei and Chen, Guangyong and Zhang, Shengyu},
            title = {Log Hyperbolic Cosine Loss Improves Variational Auto-Encoder},
            year = {2019},
            url = {https://openreview.net/forum?id=rkglvsC9Ym},
        }
        ```
    """
    e = _errors(predictions, targets)
    is_small = jnp.abs(e) < 1
    # `|e| + log1p(exp(-2 |e|)) - log 2` loses all digits of a small error. Here cosh e
    # = 1 + 2 sinh(e / 2)^2 is used.
    sinh = jnp.sinh(jnp.where(is_small, e, 0) / 2)
    size = jnp.where(is_small, 1, jnp.abs(e))
    large = size + jnp.log1p(jnp.exp(-2 * size)) - np.log(2).astype(e.dtype)
    loss = jnp.where(is_small, jnp.log1p(2 * sinh * sinh), large)
    return one_value_each(loss, predictions)


def _errors(predictions: Any, targets: Any) -> Float[Array, "..."]:
    if targets is None:
        return widen(predictions)[0]
    x, y = widen_alike(or_number=True, predictions=predictions, targets=targets)
    return x - y


def sigmoid_binary_cross_entropy(
    logits: Float[Array | np.ndarray, "*shape"], labels: RealArrayLike
) -> Float[Array, "*shape"]:
    r"""The binary cross entropy, from logits.

    $$\ell(x, y) = -y \log \sigma(x) - (1 - y) \log(1 - \sigma(x)), \qquad
      \sigma(x) = \frac{1}{1 + e^{-x}}$$

    Here $0 \log 0 = 0$: the loss of a correct infinite logit is 0.

    **Arguments:**

    - `logits`: $x$, a floating array of any shape.
    - `labels`: $y \in [0, 1]$, bools or numbers of the same shape, or a single number.

    **Returns:**

    An array of the shape and dtype of `logits`. For several labels per example, take
    the sum or mean over them.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    x, y = widen_alike(or_number=True, logits=logits, labels=labels)
    return one_value_each(_cross_entropy(x, jnp.broadcast_to(y, x.shape)), logits)


def sigmoid_focal_loss(
    logits: Float[Array | np.ndarray, "*shape"],
    labels: RealArrayLike,
    *,
    alpha: RealScalarLike | None = None,
    gamma: RealScalarLike = 2.0,
) -> Float[Array, "*shape"]:
    r"""The focal loss: binary cross entropy with less weight on easy examples.

    $$\ell(x, y) = w\, (1 - p)^\gamma\, \ell_{\text{BCE}}(x, y), \qquad
      p = y\, \sigma(x) + (1 - y)(1 - \sigma(x)), \qquad
      w = \alpha y + (1 - \alpha)(1 - y)$$

    where $\ell_{\text{BCE}}$ is [`eqopt.losses.sigmoid_binary_cross_entropy`][], and
    $p$ the probability of the label.

    **Arguments:**

    - `logits`: $x$, a floating array of any shape.
    - `labels`: $y \in [0, 1]$, bools or numbers of the same shape, or a single number.
    - `alpha`: $\alpha \in [0, 1]$, the weight of positive examples, a number or a 0-d
        array. Defaults to `None`: $w = 1$.
    - `gamma`: $\gamma \ge 0$, a number or a 0-d array. Defaults to 2; with 0, this is
        the cross entropy.

    **Returns:**

    An array of the shape and dtype of `logits`.

    **Raises:**

    A `ValueError` if the shapes differ, or if a number is out of range or has axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{lin2017focal,
            author = {Lin, Tsung-Yi and Goyal, Priya and Girshick, Ross and He, Kaiming
                      and Doll{\'a}r, Piotr},
            title = {Focal Loss for Dense Object Detection},
            booktitle = {IEEE International Conference on Computer Vision},
            year = {2017},
            eprint = {1708.02002},
            archivePrefix = {arXiv},
        }
        ```
    """
    x, y = widen_alike(or_number=True, logits=logits, labels=labels)
    y = jnp.broadcast_to(y, x.shape)
    power = as_scalar("gamma", gamma, x.dtype)
    # The power is computed from the logarithm. A probability that rounds to 0 would
    # have no derivative if `gamma` is below 1.
    miss = _log_mixture(y, jax.nn.log_sigmoid(-x), jax.nn.log_sigmoid(x))
    # Minus infinity times a `gamma` of 0 must be 0.
    miss = jnp.maximum(miss, jnp.finfo(x.dtype).min / 2**10)
    loss = _cross_entropy(x, y) * jnp.exp(power * miss)
    if alpha is not None:
        share = as_scalar("alpha", alpha, x.dtype, Interval(0, 1))
        loss = (share * y + (1 - share) * (1 - y)) * loss
    return one_value_each(loss, logits)


def hinge_loss(
    predictor_outputs: Float[Array | np.ndarray, "*shape"], targets: RealArrayLike
) -> Float[Array, "*shape"]:
    r"""The hinge loss of support vector machines, $\max(0, 1 - x y)$.

    Where $x y = 1$, its derivative is the mean of the derivatives on both sides.

    **Arguments:**

    - `predictor_outputs`: $x$, a floating array of any shape.
    - `targets`: $y \in \{-1, 1\}$, signed numbers of the same shape, or a single number.
        For labels 0 and 1, pass `2 * labels - 1`.

    **Returns:**

    An array of the shape and dtype of `predictor_outputs`.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    product = _product(predictor_outputs, targets)
    return one_value_each(jnp.maximum(1 - product, 0), predictor_outputs)


def perceptron_loss(
    predictor_outputs: Float[Array | np.ndarray, "*shape"], targets: RealArrayLike
) -> Float[Array, "*shape"]:
    r"""The loss of the perceptron, $\max(0, -x y)$.

    Where $x = 0$, its derivative is the mean of the derivatives on both sides, so that
    a model of zeros learns.

    **Arguments:**

    - `predictor_outputs`: $x$, a floating array of any shape.
    - `targets`: $y \in \{-1, 1\}$, signed numbers of the same shape, or a single number.
        For labels 0 and 1, pass `2 * labels - 1`.

    **Returns:**

    An array of the shape and dtype of `predictor_outputs`.

    **Raises:**

    A `ValueError` if the shapes differ.
    """
    product = _product(predictor_outputs, targets)
    return one_value_each(jnp.maximum(-product, 0), predictor_outputs)


def _product(predictor_outputs: Any, targets: Any) -> Float[Array, "..."]:
    arrays = {"predictor_outputs": predictor_outputs, "targets": targets}
    x, y = widen_alike(or_number=True, **arrays)
    return x * y


def sparsemax_loss(
    logits: Float[Array | np.ndarray, "*shape"], labels: RealArrayLike
) -> Float[Array, "*shape"]:
    r"""The binary sparsemax loss, which is 0 for margins of at least 1.

    $$\ell(x, y) = \begin{cases}
        0 & s \le -1 \\
        \frac14 (s + 1)^2 & -1 < s < 1 \\
        s & s \ge 1
    \end{cases} \qquad s = (1 - 2 y)\, x$$

    This is [`eqopt.losses.multiclass_sparsemax_loss`][] for the scores $(0, x)$.

    **Arguments:**

    - `logits`: $x$, a floating array of any shape.
    - `labels`: $y$, bools or numbers of the same shape, or a single one. All numbers
        except 0 mean true.

    **Returns:**

    An array of the shape and dtype of `logits`.

    **Raises:**

    A `ValueError` if the shapes differ.

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
    x, y = widen_alike(or_number=True, logits=logits, labels=labels)
    s = jnp.where(jnp.broadcast_to(y.astype(bool), x.shape), -x, x)
    is_between = jnp.abs(s) < 1
    curved = jnp.square(jnp.where(is_between, s, 0) + 1) / 4
    return one_value_each(jnp.where(is_between, curved, jnp.maximum(s, 0)), logits)


@jax.custom_jvp
def _cross_entropy(x, y):
    # One small, precise logarithm for both classes: log(1 + exp(x)) is max(x, 0) plus
    # this logarithm. The derivatives are simple, but differ from the derivatives of the
    # formula at x = 0.
    wrong = weighted(y, jnp.maximum(-x, 0)) + weighted(1 - y, jnp.maximum(x, 0))
    return wrong + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_cross_entropy.defjvp
def _cross_entropy_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    by_label = jnp.where(jnp.isinf(x), 0, -x)
    # `sigmoid(x) - y` would be 0 for a large x and y = 1.
    by_logit = (1 - y) * jax.nn.sigmoid(x) - y * jax.nn.sigmoid(-x)
    return _cross_entropy(x, y), by_logit * dx + by_label * dy


@jax.custom_jvp
def _log_mixture(y, a, b):
    r"""$\log(y e^a + (1 - y) e^b)$."""
    is_mixed = (y > 0) & (y < 1)
    inside = jnp.where(is_mixed, y, 0.5)
    mixed = jnp.logaddexp(jnp.log(inside) + a, jnp.log1p(-inside) + b)
    return jnp.where(is_mixed, mixed, jnp.where(y > 0, a, b))


@_log_mixture.defjvp
def _log_mixture_jvp(primals: Any, tangents: Any) -> Any:
    (y, a, b), (dy, da, db) = primals, tangents
    mixture = _log_mixture(y, a, b)
    # Also at y = 0 or 1, the derivative by the label has both terms. The limit keeps the
    # exponential of a large logit finite; it is multiplied by a tiny loss.
    limit = 0.9 * float(np.log(np.finfo(y.dtype).max))
    is_known = jnp.isfinite(mixture)
    gap = lambda z: jnp.where(is_known, jnp.minimum(z - mixture, limit), 0)
    of_a, of_b = jnp.exp(gap(a)), jnp.exp(gap(b))
    return mixture, y * of_a * da + (1 - y) * of_b * db + (of_a - of_b) * dy
