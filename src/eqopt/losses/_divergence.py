"""Kullback-Leibler divergences between distributions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_mask,
    one_value_each,
    widen_alike,
)
from ._logarithms import small_excess, with_derivatives_of


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
    owner = "kl_divergence"
    both = {"log_predictions": log_predictions, "targets": targets}
    log_p, q, axes = _prepared(owner, axis, where, 0, **both)
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
    owner = "kl_divergence_with_log_targets"
    both = {"log_predictions": log_predictions, "log_targets": log_targets}
    log_p, log_q, axes = _prepared(owner, axis, where, -jnp.inf, **both)
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
    owner = "generalized_kl_divergence"
    both = {"log_predictions": log_predictions, "targets": targets}
    log_p, q, axes = _prepared(owner, axis, where, 0, **both)
    return one_value_each(jnp.sum(_generalized(log_p, q), axes), log_predictions)


def _divergence(
    log_p: Float[Array, "*shape"],
    q: Float[Array, "*shape"],
    d: Float[Array, "*shape"],
    axes: tuple[int, ...],
    unit: float,
) -> Float[Array, "..."]:
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
def _generalized(
    log_p: Float[Array, "*shape"], q: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    return _gaps(jnp.exp(log_p), q, _log_ratio(log_p, q), _is_zero(q))


@_generalized.defjvp
def _generalized_jvp(primals: Any, tangents: Any) -> Any:
    log_p, q = primals
    by_q = jnp.where(_is_zero(q), -1, _log_ratio(log_p, q))
    slope = (jnp.exp(log_p) - q) * tangents[0] + by_q * tangents[1]
    return _generalized(log_p, q), slope


def _log_ratio(
    log_p: Float[Array, "*shape"], q: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    return jnp.log(jnp.where(_is_zero(q), 1, q)) - jnp.where(_is_zero(q), 0, log_p)


def _is_zero(q: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Also where `q` is denormal: a CPU may compute minus infinity as its logarithm."""
    return jnp.abs(q) < jnp.finfo(q.dtype).tiny


def _gaps(
    p: Float[Array, "*shape"],
    q: Float[Array, "*shape"],
    d: Float[Array, "*shape"],
    is_zero: Bool[Array, "*shape"],
) -> Float[Array, "*shape"]:
    """`q d - q + p`, with `d` the logarithm of `q / p` unless `q` is zero."""
    is_close = (jnp.abs(d) < 0.5) & ~is_zero
    close = q * small_excess(jnp.where(is_close, d, 0))
    return jnp.where(is_close, close, q * d - q + p)


def _rounding_unit(*arrays: Any) -> float:
    """The relative distance of neighbours in the coarsest dtype."""
    dtypes = [jax.dtypes.canonicalize_dtype(x.dtype) for x in arrays]
    return max(float(jnp.finfo(x).eps) for x in dtypes)


def _prepared(
    owner: str, axis: Any, where: Any, masked_q: float, **both: Any
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"], tuple[int, ...]]:
    """Both arrays and the axes. Masked elements have p = q = 0."""
    log_p, q = widen_alike(owner, **both)
    axes = as_axes(owner, axis, q.ndim)
    mask = as_mask(owner, where, q.shape, axes)
    return jnp.where(mask, log_p, -jnp.inf), jnp.where(mask, q, masked_q), axes
