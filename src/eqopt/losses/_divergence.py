"""Kullback-Leibler divergences between distributions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_mask,
    check_same_shape,
    one_value_each,
    widen,
)


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
    owner = "kl_divergence"
    log_p, q, axes = _prepared(
        owner, log_predictions, axis, where, 0, targets=(targets, 0)
    )
    return one_value_each(jnp.sum(_terms(log_p, q), axes), log_predictions)


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
    owner = "kl_divergence_with_log_targets"
    log_p, log_q, axes = _prepared(
        owner, log_predictions, axis, where, 0, log_targets=(log_targets, -jnp.inf)
    )
    is_zero = log_q == -jnp.inf
    finite = jnp.where(is_zero, 0, log_q)
    terms = jnp.exp(finite) * (finite - jnp.where(is_zero, 0, log_p))
    loss = jnp.sum(jnp.where(is_zero, 0, terms), axes)
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
    owner = "generalized_kl_divergence"
    # Masked elements have p = q = 0, and add nothing to either sum.
    log_p, q, axes = _prepared(
        owner, log_predictions, axis, where, -jnp.inf, targets=(targets, 0)
    )
    terms = _terms(log_p, q) - q + jnp.exp(log_p)
    return one_value_each(jnp.sum(terms, axes), log_predictions)


def _terms(
    log_p: Float[Array, "*shape"], q: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    is_zero = q == 0
    log_q = jnp.log(jnp.where(is_zero, 1, q))
    return jnp.where(is_zero, 0, q * (log_q - jnp.where(is_zero, 0, log_p)))


def _prepared(
    owner: str, log_predictions: Any, axis: Any, where: Any, masked_p: Any, **other: Any
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"], tuple[int, ...]]:
    """Both arrays, with the given values at masked elements, and the axes."""
    [(name, (targets, masked_q))] = other.items()
    check_same_shape(
        owner, "log_predictions", log_predictions, or_number=False, **{name: targets}
    )
    log_p, q = widen(log_predictions, targets)
    axes = as_axes(owner, axis, q.ndim)
    mask = as_mask(owner, where, q.shape, axes)
    return jnp.where(mask, log_p, masked_p), jnp.where(mask, q, masked_q), axes
