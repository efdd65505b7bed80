"""Step sizes along a line that is bent by a projection, so that it stays in a set."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._core import inner
from .._trees.control import while_loop
from .._trees.precision import widen
from .._types import PyTree, Scalar
from .line import Trial


# Armijo's constant, and the fraction of the loss that may be a rounding error.
_SLOPE_RTOL, _APPROX_DEC_RTOL = 1e-4, 1e-6


def search_arc(line, project: Callable[[PyTree], PyTree], max_steps) -> Trial:
    r"""The first of decreasing step sizes, from 1, with a sufficient decrease.

    With $p(\eta) = \Pi(p + \eta u)$, this is
    $f(p(\eta)) \le f(p) + c_1 \langle \nabla f(p), p(\eta) - p \rangle$, where the inner
    product is negative. If the values of the loss cannot be distinguished, the slope at
    the new point decides, as in [`eqopt.ScaleByZoomLinesearch`][].
    """
    real = line.constant
    start = widen(line.start, line.value.dtype)
    along = lambda grad, change: _dot(widen(grad, line.value.dtype), change)

    def at(step_size: Scalar, evaluations: Int[Array, ""]) -> tuple[Trial, Scalar]:
        new = project(line.moved(step_size))
        value, grad = jax.value_and_grad(line.loss)(new)
        value = value.astype(line.value.dtype)
        change = jtu.tree_map(jnp.subtract, widen(new, line.value.dtype), start)
        slope, new_slope = along(line.grad, change), along(grad, change)
        excess = value - (line.value + real(_SLOPE_RTOL) * slope)
        is_flat = value <= line.value + real(_APPROX_DEC_RTOL) * jnp.abs(line.value)
        is_flat &= new_slope <= (2 * real(_SLOPE_RTOL) - 1) * slope
        is_good = (slope < 0) & ((excess <= 0) | is_flat)
        error = jnp.where(is_good, 0, jnp.where(excess > 0, excess, jnp.inf))
        # The minimum of a parabola through both values, with the slope at the start.
        ratio = -slope / (2 * (value - line.value - slope))
        is_known = jnp.isfinite(ratio) & jnp.isfinite(value)
        factor = jnp.where(is_known, jnp.clip(ratio, 0.1, 0.5), 0.5)
        return Trial(step_size, value, grad, error, evaluations + 1), factor

    def body(now: tuple[Trial, Scalar]) -> tuple[Trial, Scalar]:
        last, factor = now
        return at(factor * last.step_size, last.evaluations)

    goes_on = lambda now: (now[0].error > 0) & (now[0].evaluations < max_steps)
    one, infinity = jnp.ones_like(line.value), jnp.full_like(line.value, jnp.inf)
    none = Trial(one, line.value, line.grad, infinity, jnp.int32(0))
    found, _ = while_loop(goes_on, body, (none, one))
    return found


def _dot(x: Any, y: Any) -> Any:
    pairs = zip(*map(jtu.tree_leaves, (x, y)), strict=True)
    return sum(inner(a, b) for a, b in pairs)
