"""Steps proportional to the size of the parameters, layer by layer."""

from typing import Any

import jax.numpy as jnp

from .._core import AbstractStateless, Leafwise, equation
from .._types import Hyperparameter, Leaf, Params, Scalar, ZeroOrMore
from .block import block_norm


@equation
def trust_ratio(
    g: Leaf, p: Leaf, *, min_norm: Scalar, trust_coefficient: Scalar, eps: Scalar
) -> Leaf:
    p_norm, g_norm = (jnp.maximum(block_norm(x), min_norm) for x in (p, g))
    is_zero = (p_norm == 0) | (g_norm == 0)
    ratio = trust_coefficient * p_norm / jnp.where(is_zero, 1, g_norm + eps)
    return jnp.where(is_zero, 1, ratio) * g


class ScaleByTrustRatio(AbstractStateless):
    r"""Scales the update of each leaf to the norm of its parameters, times a constant.

    $$u = \frac{c \max(\|p\|_2, m)}{\max(\|g\|_2, m) + \varepsilon}\; g,$$

    with the norms of each leaf separately. If one of them is zero, $u = g$, so that
    parameters that start at zero can move.

    **Arguments:**

    - `min_norm`: $m \ge 0$, the lower bound of both norms. Defaults to 0.0.
    - `trust_coefficient`: $c$, a number or a 0-d array. Defaults to 1.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 0.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`.

    ??? cite "Reference"

        ```bibtex
        @article{you2017large,
            author = {You, Yang and Gitman, Igor and Ginsburg, Boris},
            title = {Large Batch Training of Convolutional Networks},
            journal = {arXiv:1708.03888},
            year = {2017},
        }
        ```
    """

    min_norm: ZeroOrMore = 0.0
    trust_coefficient: Hyperparameter = 1.0
    eps: ZeroOrMore = 0.0

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(trust_ratio)
