"""The nearest point of a set, over all arrays of a tree together."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact, Real

from .._arguments.checks import check_number_in
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import briefly, disagreement, is_inexact, is_none, keystr
from .._trees.masks import resolve
from .._types import Interval, PyTree, RealScalarLike
from ..numerics._numerics import as_float, common_dtype, max_or_nan, wide_dtype
from ..tree._arithmetic import check_broadcasts, check_real
from ..tree._reductions import largest, norm


_Arrays = list[Inexact[Array, "..."]]


class Parts(NamedTuple):
    """The arrays of a tree, their indices among its leaves, and the inverse."""

    arrays: list
    places: list[int]
    treedef: Any
    put: Callable[[list], PyTree]


def take(name: str, tree: PyTree, complex_too: bool = False) -> Parts:
    """Takes the arrays to project from `tree`, the argument `name`."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_none)
    places = [i for i, x in enumerate(leaves) if is_inexact(x)]
    arrays = [leaves[i] for i in places]
    if not any(x.size for x in arrays):
        problem = f"`{name}` must have floating-point arrays, but is {briefly(tree)}."
        fix = "Convert numbers with `jnp.asarray(x, float)`."
        raise InputError(f"{problem} {fix}")
    if not complex_too:
        check_real(name, tree, "Project `x.real` and `x.imag`.")

    def put(new):
        out = list(leaves)
        for i, x in zip(places, new, strict=True):
            out[i] = x
        return treedef.unflatten(out)

    return Parts(arrays, places, treedef, put)


def aligned(name: str, given: PyTree, tree: PyTree, parts: Parts) -> list:
    """The arrays of `given` next to the arrays of `tree`; `None` means zeros."""
    try:
        column = parts.treedef.flatten_up_to(given)
    except (ValueError, TypeError):
        raise InputError(f"{disagreement(name, given, 'x', tree)}") from None
    found = [column[i] for i in parts.places]
    for i, x, y in zip(parts.places, parts.arrays, found, strict=True):
        if y is not None and np.shape(y) != x.shape:
            found = f"{np.shape(y)} instead of {x.shape} at `{keystr(tree, i)}`"
            raise InputError(f"`{name}` must have the shapes of `x`, but is {found}.")
    return [None if y is None else jnp.asarray(y) for y in found]


def scalar(name: str, value: RealScalarLike, *bounds: Interval) -> RealScalarLike:
    """`value`; raises unless it is a number within bounds, by default not negative.

    Traced values are not checked.
    """
    check_number_in(name, value, *bounds)
    number = float(value) if isinstance(value, int) else value
    # A compiled function converts it to an array; without `jit`, for debugging, this
    # does.
    is_for_debugging = jax.config.jax_disable_jit  # type: ignore  # added at run time
    return jnp.asarray(number) if is_for_debugging else number


def widened(arrays: _Arrays) -> _Arrays:
    """The arrays in a common precision, at least float32."""
    real = jnp.finfo(wide_dtype(*(x.dtype for x in arrays))).dtype
    wide = lambda x: common_dtype(real, jnp.complex64) if jnp.iscomplexobj(x) else real
    return [x.astype(wide(x)) for x in arrays]


def narrowed(new: _Arrays, like: _Arrays) -> _Arrays:
    """The arrays in the dtypes of the arrays that they replace."""
    return [x.astype(y.dtype) for x, y in zip(new, like, strict=True)]


#
# The simplex, and balls and spheres of norms
#


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
    parts = take("tree", tree)
    return parts.put(_simplex(parts.arrays, scalar("scale", scale)))


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
    parts = take("tree", tree)
    return parts.put(_l1_sphere(parts.arrays, scalar("scale", scale)))


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
    parts = take("tree", tree)
    return parts.put(_l1_ball(parts.arrays, scalar("scale", scale)))


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


def _newton(xs, scale, tau):
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
    parts = take("tree", tree, complex_too=True)
    return parts.put(_l2_ball(parts.arrays, scalar("scale", scale)))


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
    parts = take("tree", tree, complex_too=True)
    return parts.put(_l2_sphere(parts.arrays, scalar("scale", scale)))


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


def _polar(xs: _Arrays) -> tuple[_Arrays, Float[Array, ""], Float[Array, ""]]:
    """The direction of `xs`, their norm as a multiple of a unit, and the unit.

    The direction does not depend on the unit, so the unit may be a constant. The
    direction is 0 if `xs` are.
    """
    unit = largest(xs)
    xs = [x / unit.astype(x.dtype) for x in xs]
    length = norm(xs)
    divisor = jnp.where(length == 0, 1, length)
    return [x / divisor.astype(x.dtype) for x in xs], length, unit


#
# Separate bounds on each number
#


def non_negative(tree: PyTree) -> PyTree:
    r"""The nearest point without negative numbers: $\max(x, 0)$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` if there are no floating-point arrays, and a `TypeError` if one is
    complex.
    """
    parts = take("tree", tree)
    zeros = [jnp.zeros(()) for _ in parts.arrays]
    return parts.put(_clip(parts.arrays, zeros, [None] * len(zeros)))


def box(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    r"""The nearest point between two bounds: $\min(\max(x, l), u)$.

    !!! example

        ```python
        model = eqopt.projections.box(model, -1.0, 1.0)
        ```

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `lower`: $l$, a number or an array that broadcasts to the shape of each array, or
        a tree of them with the structure of `tree` or a prefix of it. `None`, also
        instead of a whole subtree, means no bound.
    - `upper`: $u$, given in the same form as `lower`.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes. At a bound, the result is
    constant: the derivative with respect to $x$ is 0.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes do not fit, or if
    $l \le u$ does not hold (unless one of them is traced), and a `TypeError` for
    anything that is not a real number.
    """
    parts = take("tree", tree)
    low = _bounds("lower", lower, tree, parts)
    high = _bounds("upper", upper, tree, parts)
    return _between(tree, parts, low, high)


def hypercube(tree: PyTree, scale: PyTree = 1) -> PyTree:
    r"""The nearest point of the cube $0 \le x_i \le s$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, given in the same form as `upper` in
        [`eqopt.projections.box`][]. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` in the same cases as for [`eqopt.projections.box`][],
    and a `ValueError` for a negative `scale` (unless it is traced).
    """
    parts = take("tree", tree)
    zeros = [jnp.zeros(()) for _ in parts.arrays]
    high = _bounds("scale", scale, tree, parts)
    return _between(tree, parts, zeros, high)


def linf_ball(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\max_i |x_i| \le s$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves except
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` if `scale` is negative, not finite, has axes or is not
    a real number (traced values are not checked), or if there are complex arrays, or no
    floating-point arrays.
    """
    parts = take("tree", tree)
    # As a float, because the negative of an unsigned integer is a large number.
    s = jnp.asarray(as_float(scalar("scale", scale)))
    n = len(parts.arrays)
    return parts.put(_clip(parts.arrays, [-s] * n, [s] * n))


def _between(tree: PyTree, parts: Parts, low: list, high: list) -> PyTree:
    for i, a, b in zip(parts.places, low, high, strict=True):
        if not _ascend(a, b):
            raise InputError(
                f"the lower bound {a} is above the upper bound {b} at "
                f"`{keystr(tree, i)}`."
            )
    return parts.put(_clip(parts.arrays, low, high))


@jax.jit
def _clip(arrays, low, high):
    return [_clip_leaf(x, a, b) for x, a, b in zip(arrays, low, high, strict=True)]


def _clip_leaf(x: Float[Array, "*leaf"], low, high) -> Float[Array, "*leaf"]:
    dtype = wide_dtype(x.dtype)
    y = x.astype(dtype)
    # The comparisons keep NaNs, and include the bound itself: a point that was
    # projected before stays on the bound.
    if low is not None:
        bound = jnp.broadcast_to(low.astype(dtype), x.shape)
        y = jnp.where(y <= bound, bound, y)
    if high is not None:
        bound = jnp.broadcast_to(high.astype(dtype), x.shape)
        y = jnp.where(y >= bound, bound, y)
    return y.astype(x.dtype)


def _bounds(name: str, given: PyTree, tree: PyTree, parts: Parts) -> list:
    """A bound for each array, which broadcasts to its shape."""
    column = resolve(name, given, tree, tree)
    found = [column[i] for i in parts.places]
    for i, x, bound in zip(parts.places, parts.arrays, found, strict=True):
        check_broadcasts(name, bound, tree, i, x.shape)
    wide = lambda bound: float(bound) if isinstance(bound, int) else bound
    return [bound if bound is None else jnp.asarray(wide(bound)) for bound in found]


def _ascend(low: Any, high: Any) -> bool:
    if low is None or high is None or is_traced(low) or is_traced(high):
        return True
    # In NumPy, because comparing JAX arrays would be traced under `jit`.
    return bool(np.all(np.asarray(low, float) <= np.asarray(high, float)))


#
# Sets defined by a normal vector: a line, a hyperplane, a halfspace
#


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
    parts = take("x", x)
    return parts.put(_vector(parts.arrays, aligned("a", a, x, parts)))


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
    parts = take("x", x)
    a = aligned("a", a, x, parts)
    return parts.put(_hyperplane(parts.arrays, a, scalar("b", b, _FINITE)))


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
    parts = take("x", x)
    a = aligned("a", a, x, parts)
    return parts.put(_halfspace(parts.arrays, a, scalar("b", b, _FINITE)))


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


def _foot(xs: _Arrays, normal: _Normal, b: Float[Array, ""]):
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
