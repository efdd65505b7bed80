"""The simplex, and balls and spheres of norms, over all arrays of a tree together."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Real

from .._types import PyTree, RealScalarLike
from ..numerics._numerics import max_or_nan
from ..tree._reductions import largest, norm
from ._trees import narrowed, scalar, take, widened


_Arrays = list[Inexact[Array, "..."]]


def simplex(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $x_i \ge 0$ and $\sum_i x_i = s$: $\max(x - \tau, 0)$.

    $\tau$ is chosen so that the sum over all arrays together is $s$. Newton's method
    finds it after finitely many passes, usually a few. Nothing is sorted or
    concatenated.

    !!! example

        ```python
        weights = eqopt.projections.simplex(jnp.array([0.3, 0.9, -0.5]))
        weights  # [0.2, 0.8, 0.0]
        ```

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1: the probabilities.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` if `scale` is negative, not finite, has axes or is not
    a real number (traced values are not checked), or if there are complex arrays, or no
    floating-point arrays.

    ??? cite "Reference"

        ```bibtex
        @article{michelot1986finite,
            author = {Michelot, Christian},
            title = {A Finite Algorithm for Finding the Projection of a Point onto the
                     Canonical Simplex of $\mathbb{R}^n$},
            journal = {Journal of Optimization Theory and Applications},
            volume = {50},
            pages = {195--200},
            year = {1986},
        }
        ```
    """
    parts = take("simplex", "tree", tree)
    return parts.put(_simplex(parts.arrays, scalar("simplex", "scale", scale)))


def l1_sphere(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\sum_i |x_i| = s$.

    The result has the signs of $x$, and its moduli are $|x|$ projected by
    [`eqopt.projections.simplex`][]. Zero counts as positive: if the nearest point is
    not unique, one of them is chosen.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` in the same cases as for
    [`eqopt.projections.simplex`][].
    """
    parts = take("l1_sphere", "tree", tree)
    return parts.put(_l1_sphere(parts.arrays, scalar("l1_sphere", "scale", scale)))


def l1_ball(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\sum_i |x_i| \le s$.

    Outside the ball, this is $\operatorname{sign}(x) \max(|x| - \tau, 0)$, which makes
    small numbers zero.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes. A point of the ball does not
    change.

    **Raises:**

    A `ValueError` or `TypeError` in the same cases as for
    [`eqopt.projections.simplex`][].

    ??? cite "Reference"

        ```bibtex
        @inproceedings{duchi2008efficient,
            author = {Duchi, John and Shalev-Shwartz, Shai and Singer, Yoram and
                      Chandra, Tushar},
            title = {Efficient Projections onto the $\ell_1$-Ball for Learning in High
                     Dimensions},
            booktitle = {International Conference on Machine Learning},
            pages = {272--279},
            year = {2008},
        }
        ```
    """
    parts = take("l1_ball", "tree", tree)
    return parts.put(_l1_ball(parts.arrays, scalar("l1_ball", "scale", scale)))


@jax.jit
def _simplex(arrays: _Arrays, scale: Real[Array, ""]) -> _Arrays:
    return narrowed(_project(widened(arrays), scale), arrays)


@jax.jit
def _l1_sphere(arrays: _Arrays, scale: Real[Array, ""]) -> _Arrays:
    signs, moduli = _signs_and_moduli(widened(arrays))
    return narrowed(_times(signs, _project(moduli, scale)), arrays)


@jax.jit
def _l1_ball(arrays: _Arrays, scale: Real[Array, ""]) -> _Arrays:
    xs = widened(arrays)
    signs, moduli = _signs_and_moduli(xs)
    is_outside = _total(moduli) > scale.astype(moduli[0].dtype)
    outside = _times(signs, _project(moduli, scale))
    new = [jnp.where(is_outside, y, x) for x, y in zip(xs, outside, strict=True)]
    return narrowed(new, arrays)


def _signs_and_moduli(xs: _Arrays) -> tuple[_Arrays, _Arrays]:
    # Not JAX's signs: there, the sign of zero is zero.
    signs = [jnp.where(x < 0, -1, 1).astype(x.dtype) for x in xs]
    return signs, _times(signs, xs)


def _times(xs: _Arrays, ys: _Arrays) -> _Arrays:
    return [x * y for x, y in zip(xs, ys, strict=True)]


def _total(xs: _Arrays) -> Float[Array, ""]:
    return jnp.sum(jnp.stack([jnp.sum(x) for x in xs]))


def _project(xs: _Arrays, scale: Real[Array, ""]) -> _Arrays:
    """Onto the simplex, in one dtype of at least float32."""
    scale = scale.astype(xs[0].dtype)
    # Adding a constant to all numbers changes nothing. With the largest number at zero,
    # sums of large numbers lose no digits, and tau is between `-scale` and zero.
    top = jnp.max(jnp.stack([max_or_nan(x, initial=-jnp.inf) for x in xs]))
    xs = [x - lax.stop_gradient(top) for x in xs]
    constants = lax.stop_gradient(xs), lax.stop_gradient(scale)
    # The sum of `max(x - tau, 0)` is convex and decreases in tau. Starting from the
    # left, Newton's steps increase tau until no more numbers fall below it.
    _, tau = lax.while_loop(
        lambda state: state[1] > state[0],
        lambda state: (state[1], _newton(*constants, state[1])),
        (jnp.full_like(scale, -jnp.inf), -constants[1]),
    )
    # Once more, for the derivative, which belongs to the same numbers above tau.
    below = [x <= tau for x in constants[0]]  # false for NaN
    tau = _newton(xs, scale, tau)
    return [jnp.where(b, 0, x - tau) for b, x in zip(below, xs, strict=True)]


def _newton(
    xs: _Arrays, scale: Float[Array, ""], tau: Float[Array, ""]
) -> Float[Array, ""]:
    """The tau for which the numbers above the old tau have the right sum."""
    above = [x > tau for x in xs]
    count = sum(jnp.sum(a) for a in above)
    total = _total([jnp.where(a, x, 0) for a, x in zip(above, xs, strict=True)])
    return (total - scale) / jnp.maximum(count, 1).astype(scale.dtype)


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
    return parts.put(_l2_ball(parts.arrays, scalar("l2_ball", "scale", scale)))


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
    return parts.put(_l2_sphere(parts.arrays, scalar("l2_sphere", "scale", scale)))


@jax.jit
def _l2_sphere(arrays: _Arrays, scale: Real[Array, ""]) -> _Arrays:
    directions, length, _ = _polar(widened(arrays))
    scale = scale.astype(length.dtype)
    even = scale / math.sqrt(sum(x.size for x in arrays))
    new = [
        jnp.where(length == 0, even.astype(d.dtype), scale.astype(d.dtype) * d)
        for d in directions
    ]
    return narrowed(new, arrays)


@jax.jit
def _l2_ball(arrays: _Arrays, scale: Real[Array, ""]) -> _Arrays:
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
    xs: _Arrays,
) -> tuple[_Arrays, Float[Array, ""], Float[Array, ""]]:
    """The direction of `xs`, their norm as a multiple of a unit, and the unit.

    The direction does not depend on the unit, so the unit may be a constant. The
    direction is 0 if `xs` are.
    """
    unit = largest(xs)
    xs = [x / unit.astype(x.dtype) for x in xs]
    length = norm(xs)
    divisor = jnp.where(length == 0, 1, length)
    return [x / divisor.astype(x.dtype) for x in xs], length, unit
