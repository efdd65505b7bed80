"""Orthogonalizes a matrix with matrix products only."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Inexact

from ...._matrices import AbstractWhole
from ....numerics._numerics import abs_sq, safe_sqrt
from .eigenbasis import gram, short_side


class Iteration(AbstractWhole):
    r"""$\operatorname{NS}$: the Newton-Schulz iteration of Muon.

    **Attributes:**

    - `rows`: $(a, b, c)$ for all steps, or one row for each step.
    - `steps`: the number of steps, if there is one row for all.
    - `preconditioning`: the divisor at the start, in addition to the Frobenius norm.
    - `ns_dtype`: the dtype of the iteration. `None` for the dtype of the matrix.
    """

    rows: Float[Array, "*steps 3"]
    steps: int = eqx.field(static=True)
    preconditioning: str = eqx.field(static=True)
    ns_dtype: DTypeLike | None = eqx.field(static=True)

    def of_whole(self, x: Inexact[Array, "m n"], eps: Any) -> Inexact[Array, "m n"]:
        """Orthogonalizes `x`. Zeros stay zero."""
        start = _start(x, eps, self.preconditioning)
        return iterated(start, self.rows, self.steps, self.ns_dtype, self.ns_dtype)


def iterated(
    x: Inexact[Array, "m n"],
    rows: Float[Array, "*steps 3"],
    steps: int,
    dtype: DTypeLike | None,
    coarse_dtype: DTypeLike | None,
) -> Inexact[Array, "m n"]:
    """The iteration from `x` on, in `dtype` on a CPU, and in `coarse_dtype` elsewhere."""
    # A single row needs no lookup in the loop, so there is less to compile.
    is_one = rows.ndim == 1
    fixed, xs, length = (tuple(rows), None, steps) if is_one else (None, rows, None)
    step = lambda x, row: (polynomial(x, *(fixed or row)), None)
    # A loop is compiled once, not once per step.
    loop = lambda x, unroll=1: lax.scan(step, x, xs, length, unroll=unroll)[0]
    is_coarse = has_16_bits(x.dtype if coarse_dtype is None else coarse_dtype)
    if dtype == coarse_dtype and not is_coarse:
        return in_dtype(dtype, loop, x)
    # On a GPU, two steps in 16 bits are one round of the loop: the result of a single one
    # would be computed elsewhere, and then copied.
    on_gpu = functools.partial(loop, unroll=2 if is_coarse else 1)
    return lax.platform_dependent(
        x,
        cpu=lambda x: in_dtype(dtype, loop, x),
        tpu=lambda x: in_dtype(coarse_dtype, loop, x),
        default=lambda x: in_dtype(coarse_dtype, on_gpu, x),
    )


def has_16_bits(dtype: DTypeLike) -> bool:
    """Whether it is bfloat16 or float16, whose products round no factor first."""
    return jnp.finfo(dtype).bits == 16


def in_dtype(
    dtype: DTypeLike | None, iterate: Callable, x: Inexact[Array, "m n"]
) -> Inexact[Array, "m n"]:
    """`iterate(x)`, computed in `dtype`. Complex matrices keep their dtype."""
    if dtype is None or jnp.iscomplexobj(x):
        return iterate(x)
    return iterate(x.astype(dtype)).astype(x.dtype)


def _start(x, eps, preconditioning):
    """Returns $X_0$, the start of the iteration."""
    squares = jnp.sum(abs_sq(x))
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))
    start = x / (norm + eps)
    if preconditioning == "frobenius":
        return start
    side = short_side(x.shape)
    squares = SQUARED_SCALES[preconditioning](gram(start, side))
    if squares.ndim:  # one for each row of the short side
        squares = jnp.expand_dims(squares, 1 - side)
    return start * lax.rsqrt(jnp.where(squares > 0, squares, 1))


def polynomial(x, a, b, c):
    """$(a I + b A + c A^2) X$ with $A = X X^*$.

    If $X$ has more rows than columns, this is $X (a I + b A + c A^2)$ with $A = X^* X$:
    the same matrix, at a lower cost.
    """
    real = jnp.finfo(x.dtype).dtype
    a, b, c = (number.astype(real).astype(x.dtype) for number in (a, b, c))
    side = short_side(x.shape)
    square = gram(x, side)
    rest = b * square + c * (square @ square)
    if has_16_bits(x.dtype):
        # The sum below would be another pass over `x`, and another copy of it.
        return times_side(a * jnp.eye(len(rest), dtype=x.dtype) + rest, x, side)
    # An accelerator rounds the factors of products, so this keeps small singular values:
    # otherwise, most of the result for a low rank would be noise.
    return a * x + times_side(rest, x, side)


def times_side(
    factor: Inexact[Array, "k k"], x: Inexact[Array, "m n"], side: int
) -> Inexact[Array, "m n"]:
    r"""$FX$ for the rows, $X F^\top$ for the columns, with $F$ as in `gram(x, side)`.

    The matrix itself is not transposed, which would be another pass over it.
    """
    return x @ factor.T if side else factor @ x


# The squared divisors of $X$ as functions of the `gram` of its shorter side: a number, or
# one for each row of the `gram`.
# ($X$ is always divided by the Frobenius norm first. So they do not depend on the scale
# of the gradients, and the squares of small gradients do not underflow.)
SQUARED_SCALES: dict[str, Callable] = {
    "spectral": lambda gram: jnp.linalg.eigvalsh(gram)[-1],
    "aol": lambda gram: jnp.sum(jnp.abs(gram), 1),
    "schatten": lambda gram: safe_sqrt(jnp.sum(abs_sq(gram))),
}
