from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from .._errors import InputError
from .._platforms import compute_once
from .._types import PyTree
from ..numerics._numerics import (
    abs_sq,
    at_least_float32,
    common_dtype,
    max_or_nan,
    safe_sqrt,
)
from ._together import arrays_of


def norm(
    tree: PyTree, ord: int | float | str = 2, *, squared: bool = False
) -> Float[Array, ""]:
    r"""The norm of all inexact arrays in `tree`, taken together as one vector.

    **Arguments:**

    - `tree`: any pytree, such as gradients or a whole Equinox model.
    - `ord`: `1`, `2` or `inf` (also `"inf"`): $\sum_i |x_i|$, $\sqrt{\sum_i |x_i|^2}$ or
        $\max_i |x_i|$.
    - `squared`: whether to return the square of the norm.

    **Returns:**

    A 0-d array in the widest precision in `tree`, at least float32. It is 0 if there
    are no arrays, and its gradient is 0 at 0. The 2-norm adds squares, which have half
    of the exponents: in float32, it is infinite above 1.8e19, and numbers below 1e-19
    count less and less.

    **Raises:**

    A `ValueError` for any other `ord`.
    """
    if ord not in _REDUCTIONS:
        raise InputError("norm", f"`ord` must be 1, 2 or 'inf', but is {ord!r}.")
    leaf, combine = _REDUCTIONS[ord]
    value = total(combine, [leaf(x) for x in arrays_of("norm", tree)])
    if ord == 2:
        return value if squared else safe_sqrt(value)
    return value * value if squared else value


def total(combine: Callable, parts: list, start: float = 0) -> Array:
    """Combines the numbers of several arrays; `start` if there are none."""
    if not parts:
        return jnp.asarray(start, float)
    dtype = common_dtype(*(part.dtype for part in parts))
    return combine(compute_once(jnp.stack([x.astype(dtype) for x in parts])))


@jax.jit
def _sum_of_squares(x):
    return jnp.sum(abs_sq(at_least_float32(x)))


@jax.jit
def _sum_of_moduli(x):
    return jnp.sum(jnp.abs(at_least_float32(x)))


@jax.jit
def _largest_modulus(x):
    return max_or_nan(jnp.abs(at_least_float32(x)), initial=0)


_REDUCTIONS = {
    1: (_sum_of_moduli, jnp.sum),
    2: (_sum_of_squares, jnp.sum),
    float("inf"): (_largest_modulus, jnp.max),
    "inf": (_largest_modulus, jnp.max),
}


def largest(arrays: list[Inexact[Array, "..."]]) -> Float[Array, ""]:
    r"""About $\max_i |x_i|$, or 1 if that is 0: divided by it, no square overflows.

    It is treated as a constant: results after the division must not depend on it.
    """
    tops = [jnp.max(jnp.abs(lax.stop_gradient(x)), initial=0) for x in arrays]
    dtype = common_dtype(*(top.dtype for top in tops))
    top = jnp.max(jnp.stack([x.astype(dtype) for x in tops]))
    # Compilers multiply by the reciprocal, which would be flushed to zero on a CPU if
    # it were denormal.
    top = jnp.minimum(top, 0.5 / jnp.finfo(top.dtype).tiny.item())
    return jnp.where(top == 0, 1, top)
