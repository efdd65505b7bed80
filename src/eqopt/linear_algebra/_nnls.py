"""Least squares with non-negative unknowns."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arguments.checks import check_integer, check_number_in
from .._types import Interval, RealScalarLike
from ..numerics._numerics import wide_dtype
from ..tree._reductions import largest
from ._arguments import check_array


def nnls(
    A: Any,
    b: Any,
    iters: int,
    unroll: int | bool = 1,
    L: RealScalarLike | None = None,
) -> Float[Array, "n ..."]:
    r"""Minimizes $\|A x - b\|_2$ over $x \ge 0$ by the fast projected gradient method.

    With $Q = A^\top A$, $q = A^\top b$, from $x = y = 0$ and $t = 1$ it repeats

    $$x' = \max\bigl(y - (Q y - q) / L, 0\bigr), \quad
        t' = \tfrac{1}{2} \bigl(1 + \sqrt{1 + 4 t^2}\bigr), \quad
        y = x' + \frac{t - 1}{t'} (x' - x).$$

    **Arguments:**

    - `A`: a real matrix of floating dtype.
    - `b`: a vector with a number for each row of `A`, or a matrix of such columns, each
        of which is a separate problem.
    - `iters`: the number of iterations, a Python integer of at least 0.
    - `unroll`: the number of iterations in a step of the compiled loop, as in
        `jax.lax.scan`. Defaults to 1.
    - `L`: an upper bound on the largest eigenvalue of $Q$, a positive number or a 0-d
        array. Defaults to the smaller of $\|Q\|_F$ and $\|Q\|_1$. A tighter bound makes
        it faster.

    **Returns:**

    $x$, in the dtype of `b`, computed in at least float32.

    **Raises:**

    A `ValueError` or `TypeError` if shapes do not fit, if something is not real and
    floating, if `iters` is not a Python integer, or if `L` is not positive.

    ??? cite "Reference"

        ```bibtex
        @incollection{polyak2015projected,
            author = {Polyak, Roman A.},
            title = {Projected Gradient Method for Non-Negative Least Square},
            booktitle = {Infinite Products of Operators and Their Applications},
            series = {Contemporary Mathematics},
            volume = {636},
            publisher = {American Mathematical Society},
            year = {2015},
        }
        ```
    """
    is_matrix = lambda shape: len(shape) == 2
    check_array("nnls", "A", A, "array with 2 axes", is_matrix, np.floating)
    fits = lambda shape: len(shape) in (1, 2) and shape[0] == A.shape[0]
    expected = f"array with 1 or 2 axes and the {A.shape[0]} rows of `A`"
    check_array("nnls", "b", b, expected, fits, np.floating)
    iters = check_integer("nnls", "iters", iters, 0)
    matrix, columns = jnp.asarray(A), jnp.asarray(b)
    dtype = wide_dtype(matrix.dtype, columns.dtype)
    if L is not None:
        positive = Interval(0, includes_low=False, includes_high=False)
        check_number_in("nnls", "L", L, positive)
    given = None if L is None else jnp.asarray(L, dtype)
    x = _nnls(matrix.astype(dtype), columns.astype(dtype), given, iters, unroll)
    return x.astype(columns.dtype)


@functools.partial(jax.jit, static_argnames=("iters", "unroll"))
def _nnls(a, b, bound, iters, unroll):
    # In a unit in which no square overflows, and not all underflow. The iteration does
    # not depend on it.
    unit = largest([a])
    a, b = a / unit, b / unit
    matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    gram, q = matmul(a.T, a), matmul(a.T, b)
    if bound is not None:
        bound = bound / unit / unit
    else:
        # The limit of the iteration does not depend on it, and neither does the
        # derivative.
        bound = lax.stop_gradient(_spectral_bound(gram))
    bound = jnp.where(bound == 0, 1, bound)

    def step(state, _):
        x, y, t = state
        stepped = y - (matmul(gram, y) - q) / bound
        # NaN stays NaN, and at the bound, the derivative is zero.
        new_x = jnp.where(stepped <= 0, 0, stepped)
        new_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return (new_x, new_x + (t - 1) / new_t * (new_x - x), new_t), None

    zeros = jnp.zeros_like(q)
    one = jnp.ones((), q.dtype)
    (x, _, _), _ = lax.scan(step, (zeros, zeros, one), length=iters, unroll=unroll)
    return x


def _spectral_bound(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """An upper bound on the largest eigenvalue of a symmetric matrix."""
    sums = jnp.max(jnp.sum(jnp.abs(gram), 0), initial=0)
    return jnp.minimum(jnp.sqrt(jnp.sum(gram * gram)), sums)
