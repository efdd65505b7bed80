"""Divides updates by their norm, and subtracts their mean."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._core import (
    AbstractStateless,
    AbstractTransformation,
    Leafwise,
    equation,
    global_norm,
    leafwise,
)
from .._trees.states import check_state
from .._types import Hyperparameter, Leaf, Params, Scalar, State, Updates, ZeroOrMore
from .scale import scale


def ratio(above: Array, below: Array) -> Array:
    """`above / below`, or 0 where `below` is 0. NaN stays NaN."""
    return jnp.where(below == 0, 0, above / or_1(below))


def or_1(below: Array) -> Array:
    """A divisor, 1 where it would be 0: zero over zero is zero, so `eps` may be 0."""
    return jnp.where(below == 0, 1, below)


def zero_if_infinite(norm: Float[Array, "..."]) -> Float[Array, "..."]:
    """A norm to multiply by: the update is zero where its square overflows."""
    return jnp.where(jnp.isinf(norm), 0, norm)


def power_of_two(x: Scalar) -> Scalar:
    """The power of two closest to `x`, within a range.

    Squares of numbers divided by their maximum do not overflow, and rounding is the same
    if the divisor is a power of two.
    """
    info = jnp.finfo(x.dtype)
    rounded = lax.reduce_precision(lax.stop_gradient(x), info.nexp, 0)
    limit = 2.0 ** (info.maxexp - 28)  # neither a product nor an inverse overflows
    return jnp.clip(rounded, 1 / limit, limit)


@equation
def centralize(g: Leaf) -> Leaf:
    if g.ndim < 2 or math.prod(g.shape[1:]) == 1:  # a mean of one would leave nothing
        return g
    return g - jnp.mean(g, tuple(range(1, g.ndim)), keepdims=True)


class Centralize(AbstractStateless):
    r"""Gradient centralization: subtracts the mean from the gradient of each unit.

    $$u_i = g_i - \operatorname{mean}(g_i),$$

    where $i$ is an index of the first axis, which holds the outputs in the weights of
    Equinox's linear and convolution layers. Vectors and scalars stay unchanged, and so
    do arrays with one element for each output, such as the biases of convolutions.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{yong2020gradient,
            author = {Yong, Hongwei and Huang, Jianqiang and Hua, Xiansheng and Zhang,
                      Lei},
            title = {Gradient Centralization: A New Optimization Technique for Deep
                     Neural Networks},
            booktitle = {European Conference on Computer Vision},
            year = {2020},
        }
        ```
    """

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(centralize)


class AbstractScaleByNorm(AbstractTransformation):
    """Multiplies all updates by a factor that depends on their global norm."""

    _loads = "nothing"

    @abc.abstractmethod
    def _share(self, length: Array) -> Scalar:
        """The factor for updates of this length."""

    def init(self, params: Params) -> None:
        return None

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        share = self._share(global_norm(updates, extra))
        return leafwise(scale, updates, step_size=share), None


class Normalize(AbstractScaleByNorm):
    r"""Divides the updates by their global norm: $u = g / \|g\|_2$.

    The norm is taken over all leaves together. Zero updates stay zero.
    """

    def _share(self, length: Array) -> Scalar:
        return _by_norm(1.0, length, 0.0)


class NormalizeByUpdateNorm(AbstractScaleByNorm):
    r"""Scales the updates to about a given length:
    $u = s\, g \,/\, (\|g\|_2 + \varepsilon)$.

    The norm is taken over all leaves together. Zero updates stay zero, also for
    $\varepsilon = 0$.

    **Arguments:**

    - `scale_factor`: $s$, a number or a 0-d array. Defaults to 1.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-6.

    **Raises:**

    A `ValueError` if `eps` is negative.
    """

    scale_factor: Hyperparameter = 1.0
    eps: ZeroOrMore = 1e-6

    def _share(self, length: Array) -> Scalar:
        return _by_norm(self.scale_factor, length, self.eps)


def _by_norm(factor: Any, length: Array, eps: Any) -> Scalar:
    with jax.numpy_dtype_promotion("standard"):  # of hyperparameters of any dtype
        return factor / or_1(length + eps)
