"""SM3: Adagrad that stores the sums of squares only by row and by column."""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, Float

from ..._combinators.chain import Chain
from ..._core import AbstractLeafwise, AbstractOptimizer, Leafwise, equation
from ..._matrices import Axes, DimensionNumbers, resolve_dimension_numbers
from ..._transforms.scale import ScaleByLearningRate
from ..._trees.leaves import is_leaf, parameters
from ..._types import (
    Leaf,
    Nonnegative,
    Params,
    RealLeaf,
    ScalarOrSchedule,
    Unit,
    Updates,
    UpToOne,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq
from ...tree._like import real_full_like_leaf, wide_zeros_like
from .rmsprop import over_root


class ScaleBySM3State(eqx.Module):
    """The momentum, and the accumulators for the sums of squares.

    **Attributes:**

    - `mu`: the mean of the updates so far, a tree like the parameters; `None` without
        momentum.
    - `nu`: the accumulators. For each parameter there is a tuple of real arrays, one
        for each set of its cover, with the axes of the parameter. An axis over which
        the set extends has size 1.
    """

    mu: Updates | None
    nu: Nonnegative


_Cover = tuple[Float[Array, "..."], ...]


@equation
def sm3(g: Leaf, nu: _Cover, *, b2, eps) -> tuple[Leaf, _Cover]:
    bound = b2 * functools.reduce(jnp.minimum, nu)
    bound = bound + jnp.where(b2 == 1, 1, 1 - b2) * abs_sq(g)
    return over_root(g, bound, eps), tuple(_maxima(bound, old.shape) for old in nu)


def _maxima(x: RealLeaf, shape: tuple[int, ...]) -> Float[Array, "*set"]:
    """The maxima of `x` over all axes along which `shape` is 1."""
    axes = [axis for axis, size in enumerate(shape) if size == 1]
    # Zero is a lower bound, so that an array without elements also has a maximum.
    return jnp.max(x, tuple(axes), keepdims=True, initial=0)


@equation
def sm3_momentum(
    g: Leaf, mu: Leaf, nu: _Cover, *, b1, b2, eps
) -> tuple[Leaf, Leaf, _Cover]:
    u, nu = sm3(g, nu, b2=b2, eps=eps)
    mu = b1 * mu + (1 - b1) * u
    return mu, mu, nu


class ScaleBySM3(AbstractLeafwise):
    r"""Divides the gradients by a bound on the root of the sum of their squares.

    Instead of the sums, only maxima over the sets $S_r$ of a cover are stored, for
    example over the rows and over the columns of a matrix. Each element $i$ uses the
    smallest maximum among the sets that contain it (this is the paper's SM3-II):

    $$\begin{aligned}
      \bar\nu_t(i) &= \min_{r \,:\, i \in S_r} \nu_{t-1}(r) + |g_t(i)|^2 &
      \nu_t(r) &= \max_{i \in S_r} \bar\nu_t(i) \\
      u_t &= g_t \big/ \sqrt{\bar\nu_t + \varepsilon} &
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, u_t
    \end{aligned}$$

    The new update is $\mu_t$.

    With $\beta_2 < 1$, the sum is a mean, $\bar\nu_t = \beta_2 \min_r \nu_{t-1}(r) + (1
    - \beta_2)\, |g_t|^2$.

    An array of shape $n_1 \times \dots \times n_k$ has $n_1 + \dots + n_k$
    accumulators, one for each index of each axis. (For a vector or a scalar, this is
    Adagrad.) Stacked layers then share the accumulators of their rows and columns, and
    the axes of a convolution kernel are covered one by one. Use
    `weight_dimension_numbers` to say which axes are the rows and columns of a matrix.
    Each matrix then has its own accumulators, one for each row and each column.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, or `None` for no momentum and no memory for it. The
        update is then $u_t$. Defaults to 0.9.
    - `b2`: $\beta_2 \in (0, 1]$. Defaults to 1.0.
    - `eps`: $\varepsilon \ge 0$. It may be 0, because zero divided by zero is zero
        here. Defaults to 1e-8.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        the dtype of each parameter, at least float32.
    - `weight_dimension_numbers`: a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` like the parameters or a prefix of it, or a function of the parameters
        that returns one. With `None`, each axis is covered. It is used only in `init`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `init` if the
    dimension numbers do not fit.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{anil2019memory,
            author = {Anil, Rohan and Gupta, Vineet and Koren, Tomer and Singer, Yoram},
            title = {Memory Efficient Adaptive Optimization},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """

    b1: Unit | None = 0.9
    b2: UpToOne = 1.0
    eps: ZeroOrMore = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleBySM3State:
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        given = self.weight_dimension_numbers
        nowhere = lambda _: [None] * len(leaves)
        axes = resolve_dimension_numbers(
            given, params, params, nowhere, takes_blocks=False
        )
        pairs = zip(leaves, axes, strict=True)
        covers = [None if x is None else _cover(x, a, self.nu_dtype) for x, a in pairs]
        mu = None if self.b1 is None else wide_zeros_like(params, self.mu_dtype)
        return ScaleBySM3State(mu=mu, nu=treedef.unflatten(covers))

    def leafwise(
        self, state: ScaleBySM3State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(sm3 if self.b1 is None else sm3_momentum, state)


def _cover(x: Any, axes: Axes | None, dtype: DTypeLike | None) -> _Cover:
    """Zeros for each set of the cover of `x`, sharded like it."""
    zeros = real_full_like_leaf(x, 0, dtype)
    if axes is None:
        indexed = [(axis,) for axis in range(x.ndim)] or [()]
    else:
        indexed = [axes.stack + axes.reduction, axes.stack + axes.output]
    shapes = [[n if i in own else 1 for i, n in enumerate(x.shape)] for own in indexed]
    return tuple(_maxima(zeros, tuple(shape)) for shape in shapes)


class SM3(AbstractOptimizer):
    r"""SM3: Adagrad with little memory.

    !!! abstract "One step"

        Instead of the sums, only maxima over the sets $S_r$ of a cover are stored, for
        example over the rows and over the columns of a matrix. Each element $i$ uses
        the smallest maximum among the sets that contain it (this is the paper's
        SM3-II):

        $$\begin{aligned}
          \bar\nu_t(i) &= \min_{r \,:\, i \in S_r} \nu_{t-1}(r) + |g_t(i)|^2 &
          \nu_t(r) &= \max_{i \in S_r} \bar\nu_t(i) \\
          u_t &= g_t \big/ \sqrt{\bar\nu_t + \varepsilon} &
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, u_t
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, \mu_t,$$

        where $\mu_t$ is the update of [`eqopt.ScaleBySM3`][], with
        $\varepsilon = 10^{-8}$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\nu_0 = \mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `momentum` (0.9).

    The authors increase the learning rate with the square of the step count during
    warm-up.

    !!! example

        ```python
        opt = eqopt.SM3(0.1)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `momentum`: $\beta_1 \in [0, 1)$. With `None`, the state takes almost no memory.
        Defaults to 0.9.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.
    - `weight_dimension_numbers`: a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` like the parameters or a prefix of it, or a function of the parameters
        that returns one. It is used only in `init`. Defaults to `None`, which means
        that each axis is covered.

    **When to use it:** if there is no memory for a second moment, as with large
    embeddings. Without momentum, it has almost no state. Warm up the learning rate.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{anil2019memory,
            author = {Anil, Rohan and Gupta, Vineet and Koren, Tomer and Singer, Yoram},
            title = {Memory Efficient Adaptive Optimization},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    momentum: Unit | None = 0.9
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        scale_by_sm3 = self.part(ScaleBySM3, b1=self.momentum)
        return Chain(scale_by_sm3, self.part(ScaleByLearningRate))
