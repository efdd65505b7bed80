"""Computes the eigenvectors of a preconditioner once, and then tracks them."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from ...._trees.control import cond
from ...._types import Scalar
from ....numerics._numerics import abs_sq


# One value for each side of a matrix, rows first; `None` for a side without one.
PerSide: TypeAlias = tuple[Any, ...]
# What equations of matrices are about.
Matrix: TypeAlias = Inexact[Array, "m n"]
RealMatrix: TypeAlias = Float[Array, "m n"]


def grams(x: Matrix, max_dim: float = math.inf, one_sided: bool = False) -> PerSide:
    """The `gram` for each side with a factor, `None` for the others.

    Sides longer than `max_dim` have none. If both have one, only the shorter side has it
    with `one_sided`.
    """
    fits = [n <= max_dim for n in x.shape]
    if one_sided and all(fits):
        fits[1 - short_side(x.shape)] = False
    return tuple(gram(x, side) if has else None for side, has in enumerate(fits))


def short_side(shape: tuple[int, ...]) -> int:
    """The axis of the shorter side of a matrix: 0 for the rows, also of a square."""
    return int(shape[0] > shape[1])


def gram(x: Matrix, side: int) -> Inexact[Array, "n n"]:
    r"""$X X^*$ for the rows, or the transpose of $X^* X$ for the columns."""
    axis = 1 - side
    # This is `x @ x.T.conj()`, for which XLA on a CPU would copy the transpose.
    axes = (((axis,), (axis,)), ((), ()))
    return lax.dot_general(x, jnp.conj(x), axes, precision=_precision())


def adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -2, -1))


def times(x: Any, y: Any, precision: str = "high") -> Any:
    """`x @ y`, precise enough for eigenvalues of very different sizes."""
    return jnp.matmul(x, y, precision=_precision(precision))


def _precision(least: str = "high") -> str | None:
    """At least 16 bits, unless the user sets a precision.

    By default, a TPU rounds the factors of a product to bfloat16, which has 8 bits.
    Then the error of a small eigenvalue is larger than the eigenvalue, and KL-Shampoo
    diverges. A GPU rounds them to 11 bits, with this precision, too.
    """
    of_user: Any = jax.config.jax_default_matmul_precision  # type: ignore  # an option
    return least if of_user is None else None


def to_basis(x: Matrix, basis: PerSide) -> Matrix:
    r"""$V_L X V_R^\top$, for bases with the eigenvectors, conjugated, as rows."""
    left, right = basis
    x = x if left is None else times(left, x)
    return x if right is None else times(x, right.T)


def from_basis(x: Matrix, basis: PerSide) -> Matrix:
    r"""$V_L^* X \bar V_R$, the inverse of `to_basis`."""
    left, right = basis
    x = x if left is None else times(jnp.conj(left.T), x)
    return x if right is None else times(x, jnp.conj(right))


def eigenvalues(factor: Any, v: Any) -> Float[Array, " n"]:
    """An estimate of the eigenvalues, in the order of the rows of `v`."""
    return _rayleigh(v, times(v, factor))


def _rayleigh(v: Any, product: Any) -> Float[Array, " n"]:
    """The Rayleigh quotient of each row of `v`, from its product with the factor."""
    return jnp.sum((jnp.conj(v) * product).real, 1)


def whitened(factors, basis, g, least: Callable[[Float[Array, " n"]], Any]):
    """The matrix for each side, whitened by the factor of the other side if it has one.

    **Arguments:**

    - `least`: the least eigenvalue to divide by, a function of all of them.
    """
    seen = []
    for other in (1, 0):
        x = g
        if factors[other] is not None:
            v = basis[other]
            values = eigenvalues(factors[other], v)
            root = 1 / jnp.sqrt(jnp.maximum(values, least(values)))
            pair = (None, v) if other else (v, None)
            x = to_basis(g, pair) * (root[None] if other else root[:, None])
        seen.append(x / jnp.sqrt(float(g.shape[other])))
    return seen


def average(factors, seen: Sequence[Matrix], beta, weight) -> tuple[PerSide, Scalar]:
    """The next factors, from the `gram` of a matrix for each; and a number.

    It is 0 if the square of a matrix overflows, which then counts as zero, and otherwise
    1. (Multiply the gradient by it: an infinity or a NaN stays visible as NaN.)
    """
    new, counts = [], jnp.ones(())
    for side, (factor, x) in enumerate(zip(factors, seen, strict=True)):
        if factor is not None:
            # From the trace of its `gram`, this would take a copy on a CPU.
            is_lost = jnp.isinf(jnp.sum(abs_sq(x)))
            counts = jnp.where(is_lost, 0, counts)
            product = jnp.where(is_lost, 0, gram(x, side))
            factor = beta * factor + weight * product
        new.append(factor)
    return tuple(new), counts


def find_all(factor: Any, v: Any) -> Any:
    """All eigenvectors, as rows, in the order of descending eigenvalues; ignores `v`."""
    return _eigh(factor)[1][::-1]


def _eigh(factor: Any) -> tuple[Any, Any]:
    """The eigenvalues of `factor`, ascending, and its eigenvectors as rows, conjugated.

    LAPACK stores matrices by columns, so neither its argument nor these rows are
    transposed in memory.
    """
    hermitian = jnp.conj(lax.stop_gradient(factor).T)
    values, q = jnp.linalg.eigh(hermitian, symmetrize_input=False)
    return values, jnp.conj(q.T)


# The basis follows each factor plus this share of its largest eigenvalue.
_SHIFT = 1e-5


def follow(factor: Any, v: Any) -> Any:
    """The next `v` after one step of orthogonal iteration, its rows in the same order.

    The iteration converges if the first row has the largest eigenvalue, and so on. So
    the rows are sorted for it, and afterwards moved back: what was computed in the old
    basis, such as a second moment, needs no sorting.

    The factor is shifted, which keeps its eigenvectors. Otherwise, directions without
    curvature would turn at random each time. For the same reason, a GPU must not round
    the factors of this product to 11 bits.
    """
    factor, v = lax.stop_gradient((factor, v))
    product = times(v, factor, "highest")
    values = _rayleigh(v, product)
    order = jnp.argsort(-values)
    largest = jnp.max(values)
    # Divided by the largest eigenvalue, so that no square is too large or too small.
    scale = jnp.where(largest > 0, largest, 1).astype(v.dtype)
    product = product / scale + _SHIFT * v
    q = orthonormal(jnp.conj(product[order].T))
    return jnp.conj(q.T)[jnp.argsort(order)]


def start_or_follow(is_first: Any, factor: Any, v: Any) -> Any:
    """All eigenvectors at the first call; later, those that `follow` from `v`."""
    return lax.cond(is_first, find_all, follow, factor, v)


def orthonormal(x: Any) -> Any:
    """The columns of `x`, made orthonormal from left to right.

    For 4 matrices of 1024 x 1024 on an H200, CUDA's QR decomposition takes 18.5 ms, and
    for a batch at once, 50 times as long. By products, it is 6.4 ms one after the other,
    and 5.3 ms at once, with more memory. Products keep two more arrays as large as `x`.
    """
    return lax.platform_dependent(x, cuda=_by_products, default=_by_reflections)


def _by_reflections(x: Any) -> Any:
    return jnp.linalg.qr(x)[0]


@jax.custom_batching.sequential_vmap
def _by_products(x: Any) -> Any:
    q = cholesky_qr(x)
    is_finite = jnp.all(jnp.isfinite(q))
    return lax.cond(is_finite, lambda: q, lambda: _by_reflections(x))


def cholesky_qr(x: Any) -> Any:
    """The columns of `x`, made orthonormal by products; NaN if it is nearly singular.

    This is done twice: the second time mends the rounding errors of the first one.
    """
    for _ in range(2):
        square = times(adjoint(x), x, "highest")
        lower = jnp.linalg.cholesky(square, symmetrize_input=False)
        x = lax.linalg.triangular_solve(
            lower, x, lower=True, transpose_a=True, conjugate_a=True
        )
    return x


def identities(factors: PerSide) -> PerSide:
    """The initial basis, in which matrices stay unchanged."""
    return tuple(
        None if f is None else f + jnp.eye(f.shape[-1], dtype=f.dtype) for f in factors
    )


def inverse_root(correction, eps, exponent, factor, old) -> Any:
    """The root of the inverse of `factor / correction`; `old` if it is not finite."""
    values, v = _eigh(factor / correction)
    # The least one comes first, and is negative only by rounding.
    values = values + eps - jnp.minimum(values[0], 0)
    # If `eps` is 0, zero eigenvalues have no inverse and are omitted.
    powers = jnp.where(values > 0, values, 1) ** -exponent
    powers = jnp.where(values > 0, powers, 0)
    root = times(jnp.conj(v.T * powers[None]), v)
    return jnp.where(jnp.all(jnp.isfinite(root)), root, old)


def renew_if_due(is_due, renew, factors, old) -> PerSide:
    """If due, `renew` of each factor and its old value; otherwise the old values."""
    new = []
    for factor, x in zip(factors, old, strict=True):
        if factor is not None:
            new_x = functools.partial(renew, factor, x)
            x = cond(is_due, new_x, lambda x=x: x)
        new.append(x)
    return tuple(new)
