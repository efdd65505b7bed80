"""Element-wise losses of the error of a prediction."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ._inputs import RealArrayLike, as_scalar, check_same_shape, one_value_each, widen


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
    e = _errors("squared_error", predictions, targets)
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
    e = _errors("l2_loss", predictions, targets)
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
    e = _errors("huber_loss", predictions, targets)
    bound = as_scalar("huber_loss", "delta", delta, e.dtype, 0)
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
    e = _errors("log_cosh", predictions, targets)
    is_small = jnp.abs(e) < 1
    # `|e| + log1p(exp(-2 |e|)) - log 2` loses all digits of a small error. Here cosh e
    # = 1 + 2 sinh(e / 2)^2 is used.
    sinh = jnp.sinh(jnp.where(is_small, e, 0) / 2)
    size = jnp.where(is_small, 1, jnp.abs(e))
    large = size + jnp.log1p(jnp.exp(-2 * size)) - np.log(2).astype(e.dtype)
    loss = jnp.where(is_small, jnp.log1p(2 * sinh * sinh), large)
    return one_value_each(loss, predictions)


def _errors(owner: str, predictions: Any, targets: Any) -> Float[Array, "..."]:
    if targets is None:
        return widen(predictions)[0]
    check_same_shape(owner, "predictions", predictions, targets=targets)
    x, y = widen(predictions, targets)
    return x - y
