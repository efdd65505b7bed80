"""Sets defined by a normal vector: a line, a hyperplane, a halfspace."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from .._types import Interval, PyTree, RealScalarLike
from ..tree._reductions import largest
from ._trees import aligned, narrowed, scalar, take, widened


_FINITE = Interval(includes_low=False, includes_high=False)


def vector(x: PyTree, a: PyTree) -> PyTree:
    r"""The nearest multiple of a vector: $\frac{\langle a, x \rangle}{\|a\|^2}\, a$.

    **Arguments:**

    - `x`: any pytree, such as a whole Equinox model. Its floating-point arrays together
        form one vector. All other leaves stay unchanged.
    - `a`: a tree with the same structure, with numbers or arrays of the same shapes
        instead of these arrays, or `None` for zeros.

    **Returns:**

    A tree like `x`, of the same shapes and dtypes. It is zero if $a = 0$.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ or if there
    are no floating-point arrays, and a `TypeError` for complex arrays.
    """
    parts = take("vector", "x", x)
    return parts.put(_vector(parts.arrays, aligned("vector", "a", a, x, parts)))


def hyperplane(x: PyTree, a: PyTree, b: RealScalarLike) -> PyTree:
    r"""The nearest point with $\langle a, x \rangle = b$: $x - t\, a$ with
    $t = (\langle a, x \rangle - b) / \|a\|^2$.

    **Arguments:**

    - `x`: any pytree, such as a whole Equinox model. Its floating-point arrays together
        form one vector. All other leaves stay unchanged.
    - `a`: a tree with the same structure, with numbers or arrays of the same shapes
        instead of these arrays, or `None` for zeros.
    - `b`: a number or a 0-d array.

    **Returns:**

    A tree like `x`, of the same shapes and dtypes. If $a = 0$, which does not define a
    hyperplane, it is `x`.

    **Raises:**

    A `ValueError` or `TypeError` in the same cases as for
    [`eqopt.projections.vector`][], and if `b` is not finite, has axes or is not a real
    number (traced values are not checked).
    """
    parts = take("hyperplane", "x", x)
    a = aligned("hyperplane", "a", a, x, parts)
    return parts.put(
        _hyperplane(parts.arrays, a, scalar("hyperplane", "b", b, _FINITE))
    )


def halfspace(x: PyTree, a: PyTree, b: RealScalarLike) -> PyTree:
    r"""The nearest point with $\langle a, x \rangle \le b$: $x - \max(t, 0)\, a$ with
    $t = (\langle a, x \rangle - b) / \|a\|^2$.

    **Arguments:**

    - `x`: any pytree, such as a whole Equinox model. Its floating-point arrays together
        form one vector. All other leaves stay unchanged.
    - `a`: a tree with the same structure, with numbers or arrays of the same shapes
        instead of these arrays, or `None` for zeros.
    - `b`: a number or a 0-d array.

    **Returns:**

    A tree like `x`, of the same shapes and dtypes. Points of the halfspace do not
    change. If $a = 0$, no point changes.

    **Raises:**

    A `ValueError` or `TypeError` in the same cases as for
    [`eqopt.projections.hyperplane`][].
    """
    parts = take("halfspace", "x", x)
    a = aligned("halfspace", "a", a, x, parts)
    return parts.put(_halfspace(parts.arrays, a, scalar("halfspace", "b", b, _FINITE)))


_Arrays = list[Float[Array, "..."]]
_Normal = list[Real[Array, "..."] | None]


@jax.jit
def _vector(arrays: _Arrays, normal: _Normal) -> _Arrays:
    xs = widened(arrays)
    a, t = _foot(xs, normal, jnp.zeros((), xs[0].dtype))
    new = [
        jnp.zeros_like(x) if n is None else t * n for x, n in zip(xs, a, strict=True)
    ]
    return narrowed(new, arrays)


@jax.jit
def _hyperplane(arrays: _Arrays, normal: _Normal, b: Real[Array, ""]) -> _Arrays:
    xs = widened(arrays)
    return narrowed(_minus(xs, *_foot(xs, normal, b.astype(xs[0].dtype))), arrays)


@jax.jit
def _halfspace(arrays: _Arrays, normal: _Normal, b: Real[Array, ""]) -> _Arrays:
    xs = widened(arrays)
    a, t = _foot(xs, normal, b.astype(xs[0].dtype))
    t = jnp.where(t <= 0, 0, t)  # a NaN stays
    return narrowed(_minus(xs, a, t), arrays)


def _minus(xs: _Arrays, a: _Normal, t: Float[Array, ""]) -> _Arrays:
    return [x if n is None else x - t * n for x, n in zip(xs, a, strict=True)]


def _foot(
    xs: _Arrays, normal: _Normal, b: Float[Array, ""]
) -> tuple[_Normal, Float[Array, ""]]:
    r"""The scaled normal $a$, and the corresponding $t$; 0 if $a = 0$."""
    a = [n if n is None else n.astype(b.dtype) for n in normal]
    given = [n for n in a if n is not None]
    if not given:
        return a, jnp.zeros_like(b)
    # So that squares neither overflow nor underflow. The set does not depend on the
    # length of (a, b), so derivatives are correct with a constant unit.
    unit = largest(given)
    a = [n if n is None else n / unit for n in a]
    pairs = [(x, n) for x, n in zip(xs, a, strict=True) if n is not None]
    product = sum(jnp.sum(x * n) for x, n in pairs)
    square = sum(jnp.sum(n * n) for _, n in pairs)
    t = (product - b / unit) / jnp.where(square == 0, 1, square)
    return a, jnp.where(square == 0, 0, t)
