"""Separate bounds on each number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import keystr
from .._trees.masks import resolve
from .._types import PyTree, RealScalarLike
from ..numerics._numerics import as_float, wide_dtype
from ._trees import Parts, scalar, take


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
    parts = take("non_negative", "tree", tree)
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
    parts = take("box", "tree", tree)
    low = _bounds("box", "lower", lower, tree, parts)
    high = _bounds("box", "upper", upper, tree, parts)
    return _between("box", tree, parts, low, high)


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
    parts = take("hypercube", "tree", tree)
    zeros = [jnp.zeros(()) for _ in parts.arrays]
    high = _bounds("hypercube", "scale", scale, tree, parts)
    return _between("hypercube", tree, parts, zeros, high)


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
    parts = take("linf_ball", "tree", tree)
    # As a float, because the negative of an unsigned integer is a large number.
    s = jnp.asarray(as_float(scalar("linf_ball", "scale", scale)))
    return parts.put(
        _clip(parts.arrays, [-s for _ in parts.arrays], [s for _ in parts.arrays])
    )


def _between(owner: str, tree: PyTree, parts: Parts, low: list, high: list) -> PyTree:
    for i, a, b in zip(parts.places, low, high, strict=True):
        if not _ascend(a, b):
            raise InputError(
                owner,
                f"the lower bound {a} is above the upper bound {b} at "
                f"`{keystr(tree, i)}`.",
            )
    return parts.put(_clip(parts.arrays, low, high))


@jax.jit
def _clip(
    arrays: list[Float[Array, "..."]],
    low: list[Real[Array, "..."] | None],
    high: list[Real[Array, "..."] | None],
) -> list[Float[Array, "..."]]:
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


def _bounds(owner: str, name: str, given: PyTree, tree: PyTree, parts: Parts) -> list:
    """A bound for each array, checked except for its value."""
    column = resolve(name, given, tree, tree)
    found = [column[i] for i in parts.places]
    for i, x, bound in zip(parts.places, parts.arrays, found, strict=True):
        if bound is not None and not _broadcasts(np.shape(bound), x.shape):
            raise InputError(
                owner,
                f"`{name}` must broadcast to the shape {x.shape} at "
                f"`{keystr(tree, i)}`, but has shape {np.shape(bound)}.",
            )
    return [bound if bound is None else _as_array(bound) for bound in found]


def _as_array(bound: Any) -> Array:
    return jnp.asarray(float(bound) if isinstance(bound, int) else bound)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _ascend(low: Any, high: Any) -> bool:
    if low is None or high is None or is_traced(low) or is_traced(high):
        return True
    # In NumPy, because comparing JAX arrays would be traced under `jit`.
    return bool(np.all(np.asarray(low, float) <= np.asarray(high, float)))
