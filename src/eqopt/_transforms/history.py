"""A ring buffer of the last values of a number."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arguments.checks import check_fields, check_interval
from ..numerics._numerics import safe_increment


def check_window(owner: Any) -> None:
    """Raises unless `min_history` values fit into the window."""
    check_fields(owner)
    if owner.min_history is not None:
        name = type(owner).__name__
        check_interval(name, "min_history", owner.min_history, 2, owner.window)


def present(count: Int[Array, ""], window: int) -> tuple[Bool[Array, " window"], Any]:
    """Which places of a history have values, and their number, at least 2."""
    n = jnp.maximum(jnp.minimum(count, window), 2).astype(jnp.float32)
    return jnp.arange(window, dtype=count.dtype) < count, n


def is_known(owner: Any, count: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether there are `min_history` values: by default, half of the window."""
    least = owner.min_history
    least = max(2, owner.window // 2) if least is None else least
    return count >= jnp.asarray(least).astype(count.dtype)


def remembered(
    x: Float[Array, ""], history: Float[Array, " window"], count: Int[Array, ""]
) -> tuple[Float[Array, " window"], Int[Array, ""]]:
    """The history and its count after `x`, which must be finite to be remembered."""
    places = jnp.arange(len(history), dtype=count.dtype)
    is_finite = jnp.isfinite(x)
    here = (places == count % len(history)) & is_finite
    count = jnp.where(is_finite, safe_increment(count), count)
    return jnp.where(here, x, history), count
