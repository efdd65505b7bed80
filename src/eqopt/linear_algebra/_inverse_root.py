"""Inverse roots of positive semi-definite matrices, using only matrix products."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arguments.checks import check_integer, check_number_in
from .._types import IntegerLike, RealScalarLike
from ..numerics._numerics import wide_dtype
from ._arguments import check_square
from ._power_iteration import power_iteration


def matrix_inverse_pth_root(
    matrix: Any,
    p: int,
    num_iters: IntegerLike = 100,
    ridge_epsilon: RealScalarLike = 1e-6,
    error_tolerance: RealScalarLike = 1e-6,
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    r"""$(A + \epsilon \lambda I)^{-1/p}$ by a coupled Newton iteration.

    $\lambda$ is the largest eigenvalue of $A$, at least 1e-16. With
    $B = (A + \epsilon \lambda I) / \lambda$ and $z = \frac{1 + p}{2 \|B\|_F}$, it
    starts with $M = z B$, $X = z^{1/p} I$ and repeats

    $$T = \tfrac{1}{p} \bigl((p + 1) I - M\bigr), \quad
        M \leftarrow T^p M, \quad X \leftarrow X T,$$

    until $\max |M - I|$ is small, or $\|M - I\|_F$ grows by rounding. Then
    $X \approx B^{-1/p}$.

    **Arguments:**

    - `matrix`: $A$, symmetric and positive semi-definite, of floating dtype.
    - `p`: a Python integer of at least 1.
    - `num_iters`: the largest number of iterations, an integer or a 0-d integer array.
        Defaults to 100.
    - `ridge_epsilon`: $\epsilon \ge 0$. Defaults to 1e-6. It must be positive for a
        finite root of a singular matrix.
    - `error_tolerance`: the iteration ends if $\max |M - I|$ is below this. Defaults to
        1e-6.
    - `precision`: the precision of the products on accelerators. Defaults to the
        highest.

    **Returns:**

    The root, in the dtype of `matrix`, and its error $\max |M - I|$, in at least
    float32, in which everything is computed. The root of a zero matrix is
    $(10^{-16} \epsilon)^{-1/p} I$. The iteration has only a forward-mode derivative.

    **Raises:**

    A `ValueError` or `TypeError` if `matrix` is not square or not real and floating, if
    `p` is not a positive Python integer, or if `ridge_epsilon` or `error_tolerance` is
    negative.

    ??? cite "Reference"

        Equation 7.18 in

        ```bibtex
        @book{higham2008functions,
            author = {Higham, Nicholas J.},
            title = {Functions of Matrices: Theory and Computation},
            publisher = {SIAM},
            year = {2008},
            doi = {10.1137/1.9780898717778},
        }
        ```
    """
    owner = "matrix_inverse_pth_root"
    check_square(owner, "matrix", matrix, np.floating)
    p = check_integer(owner, "p", p, 1)
    check_number_in(owner, "ridge_epsilon", ridge_epsilon)
    check_number_in(owner, "error_tolerance", error_tolerance)
    matrix = jnp.asarray(matrix)
    dtype = wide_dtype(matrix.dtype)
    root, error = _inverse_root(
        matrix.astype(dtype),
        p,
        num_iters,
        jnp.asarray(ridge_epsilon, dtype),
        jnp.asarray(error_tolerance, dtype),
        precision,
    )
    return root.astype(matrix.dtype), error


class _Iterate(NamedTuple):
    m: Float[Array, "n n"]
    x: Float[Array, "n n"]
    errors: tuple[Float[Array, ""], Float[Array, ""]]


@functools.partial(jax.jit, static_argnames=("p", "precision"))
def _inverse_root(a, p, num_iters, ridge, tolerance, precision):
    identity = jnp.eye(len(a), dtype=a.dtype)
    matmul = functools.partial(jnp.matmul, precision=precision)
    top, _ = power_iteration(a, precision=precision)
    # Divided by the largest eigenvalue first, so that norms of a small matrix do not
    # underflow.
    top = jnp.maximum(top, 1e-16)
    b = a / top + ridge * identity
    z = (1 + p) / (2 * jnp.linalg.norm(b))

    def errors(m):
        rest = m - identity
        # The second error, of eigenvalues, grows only by rounding. The first one, of
        # elements, also grows while more and more eigenvalues approach 1.
        return jnp.max(jnp.abs(rest)), jnp.linalg.norm(rest)

    def is_growing(now, before):
        return ~(now.errors[1] < 1.2 * before.errors[1])  # or NaN

    def is_going_on(state):
        now, before, count = state
        is_done = (now.errors[0] <= tolerance) | is_growing(now, before)
        return ~is_done & (count < num_iters)

    def step(state):
        now, _, count = state
        t = ((1 + p) * identity - now.m) / p
        m = matmul(_power(t, p, matmul), now.m)
        return _Iterate(m, matmul(now.x, t), errors(m)), now, count + 1

    start = _Iterate(z * b, z ** (1 / p) * identity, errors(z * b))
    infinity = jnp.full_like(top, jnp.inf)
    state = start, start._replace(errors=(infinity, infinity)), 0
    now, before, _ = lax.while_loop(is_going_on, step, state)
    choose = functools.partial(jnp.where, is_growing(now, before))
    root = choose(before.x, now.x) * top ** (-1 / p)
    return root, choose(before.errors[0], now.errors[0])


def _power(t, p, matmul):
    """$T^p$ by repeated squaring."""
    if p == 1:
        return t
    half = _power(t, p // 2, matmul)
    square = matmul(half, half)
    return matmul(square, t) if p % 2 else square
