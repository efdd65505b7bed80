"""Label smoothing."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ._inputs import (
    Axes,
    RealArrayLike,
    as_axes,
    as_mask,
    as_scalar,
    one_value_each,
    widen,
)


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
    axes = as_axes("smooth_labels", axis, y.ndim)
    mask = as_mask("smooth_labels", where, y.shape, axes)
    share = as_scalar("smooth_labels", "alpha", alpha, y.dtype, 0, 1)
    number = jnp.sum(mask, axes, keepdims=True).astype(y.dtype)
    mixed = (1 - share) * jnp.where(mask, y, 0) + share / jnp.maximum(number, 1)
    return one_value_each(jnp.where(mask, mixed, 0), labels)
