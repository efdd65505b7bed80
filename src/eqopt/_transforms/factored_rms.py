"""Second moments of matrices, stored as one number per row and one per column."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int

from .._arguments.extra import required_params
from .._arguments.fields import static_choice
from .._core import AbstractLeafwise, Leafwise, ShapeMismatch, equation
from .._matrices import (
    DimensionNumbers,
    MatrixDimensionNumbers,
    resolve_dimension_numbers,
)
from .._trees.leaves import is_leaf, is_parameter
from .._types import (
    CountOrZero,
    Hyperparameter,
    Leaf,
    Nonnegative,
    Params,
    PerLeaf,
    Positive,
    PyTree,
    Scalar,
    SizeOrZero,
    ZeroOrMore,
)
from ..numerics._numerics import abs_sq, as_float, safe_increment, safe_sqrt
from ..tree._like import real_full_like_leaf


class ScaleByFactoredRMSState(eqx.Module):
    """The second moments of the updates so far.

    The moments are trees like the parameters. Each parameter has either `v_row` and
    `v_col`, or `v`; the others are empty tuples.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `v_row`: the mean of each row, a real array with the shape of the parameter
        without its column axes.
    - `v_col`: the mean of each column, a real array with the shape of the parameter
        without its row axes.
    - `v`: the second moment of each element, for parameters that are not factored.
    """

    count: Int[Array, ""]
    v_row: PerLeaf
    v_col: PerLeaf
    v: Nonnegative


class _Axes(eqx.Module):
    """Which axes of a leaf are rows, and which are columns."""

    rows: tuple[int, ...] = eqx.field(static=True)
    columns: tuple[int, ...] = eqx.field(static=True)


# An array, or the empty tuple if a leaf has no statistics of this kind. (`None` would
# mean that there is no parameter.)
_Statistics: TypeAlias = PyTree[Float[Array, "..."]]


@equation
def factored_rms(
    g: Leaf,
    v_row: _Statistics,
    v_col: _Statistics,
    v: _Statistics,
    axes: _Axes | None,
    *,
    decay: Scalar,
    eps: Scalar,
    clipping_threshold: Scalar | None,
) -> tuple[Leaf, _Statistics, _Statistics, _Statistics]:
    if axes is None:
        v = _average(decay, v, abs_sq(g) + eps)
        factors = [inverse_root(v)]
    else:
        rows, columns = axes.rows, axes.columns
        v_row = _average(decay, v_row, jnp.mean(abs_sq(g), columns) + eps)
        v_col = _average(decay, v_col, jnp.mean(abs_sq(g), rows) + eps)
        r, c = jnp.expand_dims(v_row, columns), jnp.expand_dims(v_col, rows)
        factors = inverse_roots(r, c, rows)
    if clipping_threshold is not None:
        rms = safe_sqrt(jnp.mean(squared_product(g, factors)))
        factors[-1] = factors[-1] / jnp.maximum(1, rms / clipping_threshold)
    return math.prod(factors, start=g), v_row, v_col, v


def inverse_roots(row, col, rows):
    """Factors of the inverse root of the second moment, `row * col / mean(row)`.

    The roots are taken separately: their product underflows, and so do derivatives
    through the quotient. If the mean overflows, the factors are zeros.
    """
    mean_root = inverse_root(jnp.mean(row, rows, keepdims=True))
    mean_root = jnp.where(mean_root == 0, jnp.inf, mean_root)
    return [inverse_root(row), inverse_root(col) / mean_root]


def squared_product(x, factors):
    """The square of the product of `x` and all factors.

    Computed from squares: for the norm of the product itself, XLA would store the
    product. Where a square overflows, the first factor is zero, so it comes first.
    """
    first, *others = factors
    return math.prod((f * f for f in others), start=abs_sq(x * first))


def _average(decay, old, new):
    if getattr(old, "shape", None) != new.shape:
        found = getattr(old, "shape", None)
        raise ShapeMismatch(
            f"the state has statistics of shape {found}, but these gradients need "
            f"{new.shape}. Make a new state: `opt.init(model)`."
        )
    # The decay of the first step is zero, which times infinity would be NaN.
    return jnp.where(decay == 0, 0, decay * old) + (1 - decay) * new


def inverse_root(x):
    return 1 / jnp.sqrt(jnp.where(x == 0, 1, x))


def power_decay(step: Any, decay_rate: Any) -> Any:
    r"""$1 - (t + 1)^{-c}$, where $t$ is the number of steps taken so far."""
    with jax.numpy_dtype_promotion("standard"):  # an integer to the power of a float
        return 1 - (step + 1.0) ** -as_float(decay_rate)


class ScaleByFactoredRMS(AbstractLeafwise):
    r"""Divides by the root of a second moment that is stored as rows times columns.

    $$\begin{aligned}
      r_t &= \beta_t r_{t-1} + (1 - \beta_t) \operatorname{mean}_{\text{columns}}
             (|g_t|^2 + \varepsilon) \\
      c_t &= \beta_t c_{t-1} + (1 - \beta_t) \operatorname{mean}_{\text{rows}}
             (|g_t|^2 + \varepsilon) \\
      u_t &= g_t \Big/ \sqrt{r_t c_t^\top / \operatorname{mean}(r_t)}, \qquad
      \beta_t = 1 - t^{-c}
    \end{aligned}$$

    for matrices, and $u_t = g_t / \sqrt{v_t}$ with
    $v_t = \beta_t v_{t-1} + (1 - \beta_t) (|g_t|^2 + \varepsilon)$ for everything else.

    An $n \times m$ matrix needs $n + m$ numbers of state, in at least float32. There,
    the square of a gradient above 1.8e19 overflows: its matrix, or its coordinate if it
    is not in a matrix, then has an infinite second moment, and updates of zero.

    By default, the shape of a parameter decides whether it is a matrix: the two largest
    axes of an array count as its rows and columns if both are large enough, and the
    array is a stack of matrices along all other axes. This may be wrong for stacked
    layers, and for convolutions, whose kernels are matrices over more than two axes.
    For these, set `weight_dimension_numbers`:

    !!! example

        ```python
        # Kernels (out, in, height, width) are matrices, all else is not factored.
        kernel = eqopt.MatrixDimensionNumbers((1, 2, 3), 0)
        opt = eqopt.ScaleByFactoredRMS(
            weight_dimension_numbers=lambda params: jax.tree.map(
                lambda p: kernel if p.ndim == 4 else None, params
            )
        )
        ```

    **Arguments:**

    - `factored`: whether to factor second moments. With `False`, all parameters have
        `v`. Defaults to `True`.
    - `decay_rate`: $c$, a number or a 0-d array. A larger value averages over more
        steps. Defaults to 0.8.
    - `step_offset`: the number of steps that do not count in $t$, for a state whose
        count continues from earlier training. Before this step, $t = 1$. Defaults to 0.
    - `min_dim_size_to_factor`: the smallest size of rows and columns to factor, if
        `weight_dimension_numbers` is not given. Defaults to 128.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-30.
    - `decay_rate_fn`: $\beta_t$ as a function of $t - 1$ and `decay_rate`. For long
        runs, keep it below 0.999, for example, so that the second moments do not
        freeze. Defaults to $1 - t^{-c}$.
    - `weight_dimension_numbers`: [`eqopt.MatrixDimensionNumbers`][] for each parameter
        to factor, of any size, and `None` for all others: a tree like the parameters or
        a prefix of it, or a function of the parameters that returns one.
    - `clipping_threshold`: $d > 0$, to divide $u_t$ by
        $\max(1, \operatorname{RMS}(u_t) / d)$. An [`eqopt.ClipByBlockRMS`][] after it
        does the same, but must store $u_t$. `None` means no clipping.
    - `nu_dtype`: the dtype in which second moments are stored. Defaults to float32, or
        the precision of the parameter if that is higher.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params` is
    `None`; a `ValueError` or `TypeError` that names the key path, in `init` and `update`,
    if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{shazeer2018adafactor,
            author = {Shazeer, Noam and Stern, Mitchell},
            title = {Adafactor: Adaptive Learning Rates with Sublinear Memory Cost},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }
        ```
    """

    factored: bool = True
    decay_rate: Hyperparameter = 0.8
    step_offset: CountOrZero = 0
    min_dim_size_to_factor: SizeOrZero = static_choice(static=True, default=128)
    eps: ZeroOrMore = 1e-30
    decay_rate_fn: Callable[[Any, Any], Any] = power_decay
    weight_dimension_numbers: DimensionNumbers | None = None
    clipping_threshold: Positive | None = None
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByFactoredRMSState:
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        pairs = zip(leaves, self._axes(params), strict=True)
        columns = zip(*(self._zeros(x, axes) for x, axes in pairs), strict=True)
        trees = [treedef.unflatten(column) for column in columns] or [params] * 3
        return ScaleByFactoredRMSState(jnp.zeros((), jnp.int32), *trees)

    def leafwise(
        self, state: ScaleByFactoredRMSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        params = required_params(params)
        _, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        # Before the offset, every step counts as the first: at t = 0, there is no
        # decay.
        offset = jnp.asarray(self.step_offset, jnp.int32)
        step = jnp.maximum(state.count - offset, 0)
        count = safe_increment(state.count)
        return Leafwise(
            factored_rms,
            eqx.tree_at(lambda s: s.count, state, count),
            {"decay": self.decay_rate_fn(step, self.decay_rate)},
            reads={"axes": treedef.unflatten(self._axes(params))},
        )

    def _axes(self, params: Params) -> list[_Axes | None]:
        """For each leaf (counting `None`s) its axes, or `None` if it is not factored."""
        given = self.weight_dimension_numbers
        numbers = resolve_dimension_numbers(
            given, params, params, self._largest, takes_blocks=False
        )
        leaves = jtu.tree_leaves(params, is_leaf=is_leaf)
        # Rows and columns without elements have no mean.
        return [
            _Axes(n.reduction, n.output) if n and self.factored and x.size else None
            for n, x in zip(numbers, leaves, strict=True)
        ]

    def _largest(self, tree: PyTree) -> list[MatrixDimensionNumbers | None]:
        """The two largest axes of each leaf, if they are large enough."""

        def of_leaf(x):
            if not is_parameter(x) or x.ndim < 2:
                return None
            rows, columns = (int(axis) for axis in np.argsort(x.shape)[-2:])
            is_large = x.shape[rows] >= self.min_dim_size_to_factor
            return MatrixDimensionNumbers(rows, columns) if is_large else None

        return [of_leaf(x) for x in jtu.tree_leaves(tree, is_leaf=is_leaf)]

    def _zeros(self, x: Any, axes: _Axes | None) -> tuple[Any, Any, Any]:
        if not is_parameter(x):
            return None, None, None
        v = real_full_like_leaf(x, 0, self.nu_dtype)
        if axes is None:
            return (), (), v
        # Reduced from `v`, not created separately, so that they are sharded like the
        # remaining axes.
        return jnp.sum(v, axes.columns), jnp.sum(v, axes.rows), ()
