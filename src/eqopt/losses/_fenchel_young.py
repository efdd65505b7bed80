"""Losses based on the maximum of a regularized linear function."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._inputs import RealArrayLike, check_ndim, check_same_shape, one_value_each, widen
from ._logarithms import weighted


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

    def fenchel_young_loss(
        scores: Float[Array | np.ndarray, "..."],
        targets: RealArrayLike,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, "..."]:
        owner = "fenchel_young_loss"
        check_ndim(owner, "scores", scores, 1, "the last one for the maximum")
        check_same_shape(owner, "scores", scores, targets=targets, or_number=False)
        s, y = widen(scores, targets)
        rows = s.reshape(-1, s.shape[-1]) if s.size else jnp.zeros((0, s.shape[-1]))
        best = jax.vmap(lambda row: max_fun(row, *args, **kwargs))(rows)
        if jnp.shape(best) != (len(rows),):
            raise ValueError(
                "fenchel_young_loss: `max_fun` must return one number for a vector of "
                f"scores, but returned an array of shape {jnp.shape(best)[1:]}. Pass "
                "the maximum itself, such as `logsumexp`, not the maximizer, such as "
                "`softmax`."
            )
        best = best.astype(s.dtype).reshape(s.shape[:-1])
        return one_value_each(best - jnp.sum(weighted(y, s), -1), scores)

    return fenchel_young_loss
