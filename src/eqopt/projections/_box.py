"""Separate bounds on each number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree, Real

from .._leaves import keystr, resolve
from .._types import RealScalarLike
from ..numerics import wide_dtype
from ._trees import Parts, check_real, scalar, take


def non_negative(tree: PyTree) -> PyTree:
    r"""The nearest point without negative numbers: $\max(x, 0)$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves but its
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

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves but its
        floating-point arrays stay unchanged.
    - `lower`: $l$, a number or an array that broadcasts to the shape of each array, or
        a tree of them with the structure of `tree` or of the upper part of it. `None`,
        instead of a whole branch too, is no bound.
    - `upper`: $u$, of the same kind.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes. At a bound, the result is
    constant: there, the derivative by $x$ is 0.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes do not fit, or if
    $l \le u$ does not hold (unless one of them is traced), and a `TypeError` for what
    is not a real number.
    """
    parts = take("box", "tree", tree)
    low = _bounds("box", "lower", lower, tree, parts)
    high = _bounds("box", "upper", upper, tree, parts)
    for i, a, b in zip(parts.places, low, high, strict=True):
        if not _ascend(a, b):
            raise ValueError(
                "box: `lower` must not be above `upper`, but somewhere it is at "
                f"`{keystr(tree, i)}`: there `lower` is {a} and `upper` is {b}."
            )
    return parts.put(_clip(parts.arrays, low, high))


def hypercube(tree: PyTree, scale: PyTree = 1) -> PyTree:
    r"""The nearest point of the cube $0 \le x_i \le s$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves but its
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, given as `upper` of [`eqopt.projections.box`][]. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` as [`eqopt.projections.box`][], and for a negative
    `scale` (unless it is traced).
    """
    parts = take("hypercube", "tree", tree)
    zeros = [jnp.zeros(()) for _ in parts.arrays]
    high = _bounds("hypercube", "scale", scale, tree, parts)
    for i, b in zip(parts.places, high, strict=True):
        if not _ascend(0.0, b):
            raise ValueError(
                "hypercube: `scale` must not be negative, but somewhere it is at "
                f"`{keystr(tree, i)}`: there it is {b}."
            )
    return parts.put(_clip(parts.arrays, zeros, high))


def linf_ball(tree: PyTree, scale: RealScalarLike = 1) -> PyTree:
    r"""The nearest point with $\max_i |x_i| \le s$.

    **Arguments:**

    - `tree`: $x$, any pytree, such as a whole Equinox model. All leaves but its
        floating-point arrays stay unchanged.
    - `scale`: $s \ge 0$, a number or a 0-d array. Defaults to 1.

    **Returns:**

    A tree like `tree`, of the same shapes and dtypes.

    **Raises:**

    A `ValueError` or `TypeError` if `scale` is negative, not finite, has axes or is not
    a real number (the value of a traced one is not checked), or if there are no
    floating-point arrays or complex ones.
    """
    parts = take("linf_ball", "tree", tree)
    s = jnp.asarray(scalar("linf_ball", "scale", scale, 0))
    return parts.put(
        _clip(parts.arrays, [-s for _ in parts.arrays], [s for _ in parts.arrays])
    )


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
    # The comparisons are such that NaNs stay, and that a bound which is met counts: a
    # point that has been projected before does not move off the bound.
    if low is not None:
        bound = jnp.broadcast_to(low.astype(dtype), x.shape)
        y = jnp.where(y <= bound, bound, y)
    if high is not None:
        bound = jnp.broadcast_to(high.astype(dtype), x.shape)
        y = jnp.where(y >= bound, bound, y)
    return y.astype(x.dtype)


def _bounds(owner: str, name: str, given: PyTree, tree: PyTree, parts: Parts) -> list:
    """A bound for each array, checked except for its value."""
    column = resolve(name, given, tree, None)
    found = [column[i] for i in parts.places]
    for i, x, bound in zip(parts.places, parts.arrays, found, strict=True):
        if bound is None:
            continue
        check_real(owner, name, bound, f" at `{keystr(tree, i)}`")
        if not _broadcasts(np.shape(bound), x.shape):
            raise ValueError(
                f"{owner}: `{name}` must broadcast to the shape of the array it bounds, "
                f"but has shape {np.shape(bound)} for one of shape {x.shape} at "
                f"`{keystr(tree, i)}`."
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
    if low is None or high is None:
        return True
    if isinstance(low, Tracer) or isinstance(high, Tracer):
        return True
    # In NumPy, as an array's comparison would be traced under `jit`.
    return bool(np.all(np.asarray(low, float) <= np.asarray(high, float)))
