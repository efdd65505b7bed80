"""Balls and spheres of the Euclidean norm, over all arrays of a tree together."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Real

from .._types import PyTree, RealScalarLike
from ..tree._norm import largest, norm
from ._trees import narrowed, scalar, take, widened


def l2_ball(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\|x\|_2 \le s$: $x \min(1, s / \|x\|_2)$.

    The norm is over all arrays together, as in [`eqopt.tree.norm`][].

    !!! example

        ```python
        model = eqopt.projections.l2_ball(model, 10.0)
        ```

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point and complex arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes. A point of the ball does not
    change.

    **Raises:**

    A `ValueError` or `TypeError` if `scale` is negative, not finite, has axes or is not
    a real number (traced values are not checked), or if there are no
    floating-point arrays.
    """
    parts = take("l2_ball", "tree", tree, complex_too=True)
    return parts.put(_ball(parts.arrays, scalar("l2_ball", "scale", scale, 0)))


def l2_sphere(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\|x\|_2 = s$: $s\, x / \|x\|_2$.

    The norm is over all arrays together, as in [`eqopt.tree.norm`][]. All points of the
    sphere are equally near to $x = 0$. In that case, the result is the point with equal
    numbers, and its derivative with respect to $x$ is 0.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point and complex arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` as [`eqopt.projections.l2_ball`][].
    """
    parts = take("l2_sphere", "tree", tree, complex_too=True)
    return parts.put(_sphere(parts.arrays, scalar("l2_sphere", "scale", scale, 0)))


@jax.jit
def _sphere(
    arrays: list[Inexact[Array, "..."]], scale: Real[Array, ""]
) -> list[Inexact[Array, "..."]]:
    directions, length, _ = _polar(widened(arrays))
    scale = scale.astype(length.dtype)
    even = scale / math.sqrt(sum(x.size for x in arrays))
    new = [
        jnp.where(length == 0, even.astype(d.dtype), scale.astype(d.dtype) * d)
        for d in directions
    ]
    return narrowed(new, arrays)


@jax.jit
def _ball(
    arrays: list[Inexact[Array, "..."]], scale: Real[Array, ""]
) -> list[Inexact[Array, "..."]]:
    xs = widened(arrays)
    directions, length, unit = _polar(xs)
    scale = scale.astype(length.dtype)
    is_outside = length * unit > scale
    new = [
        jnp.where(is_outside, scale.astype(d.dtype) * d, x)
        for x, d in zip(xs, directions, strict=True)
    ]
    return narrowed(new, arrays)


def _polar(
    xs: list[Inexact[Array, "..."]],
) -> tuple[list[Inexact[Array, "..."]], Float[Array, ""], Float[Array, ""]]:
    """The direction of `xs`, their norm as a multiple of a unit, and the unit.

    The direction does not depend on the unit, so the unit may be a constant. The
    direction is 0 if `xs` are.
    """
    unit = largest(xs)
    xs = [x / unit.astype(x.dtype) for x in xs]
    length = norm(xs)
    divisor = jnp.where(length == 0, 1, length)
    return [x / divisor.astype(x.dtype) for x in xs], length, unit
