"""Clipping factors for gradients with given norms."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax_internals import is_traced


def clip_factors(
    norms: Float[Array, " examples"], limit: Any
) -> Float[Array, " examples"]:
    """The factors that reduce the given norms to at most `limit`.

    A zero gradient is not clipped. For a NaN norm, the factor is zero: NaN values stay
    NaN, and finite values add nothing. A traced limit may be wrong without an error: a
    negative one counts as zero, and for a NaN limit, the factors are NaN.
    """
    limit = jnp.asarray(limit, norms.dtype)
    limit = jnp.where(limit < 0, 0, limit)
    exceeds = (norms > limit) | jnp.isnan(limit)
    factors = jnp.where(exceeds, limit / jnp.where(exceeds, norms, 1), 1)
    return jnp.where(jnp.isnan(norms) & (limit < jnp.inf), 0, factors)


def check_clip(l2_norm_clip: Any, groups: Any) -> None:
    is_mapping = isinstance(l2_norm_clip, Mapping)
    if is_mapping and groups is None:
        raise ValueError(
            f"`l2_norm_clip` is for the groups {list(l2_norm_clip)}, but there are no "
            "`groups`. Pass the labels of the parameters, or a single number."
        )
    for label, x in (l2_norm_clip if is_mapping else {None: l2_norm_clip}).items():
        name = "l2_norm_clip" + (f"[{label!r}]" if is_mapping else "")
        if np.shape(x) != ():
            raise ValueError(
                f"`{name}` must be a number or a 0-d array, got shape {np.shape(x)}."
            )
        if not is_traced(x) and not float(x) >= 0:
            raise ValueError(f"`{name}` must be in [0, inf), got {x}.")


def limits_of(l2_norm_clip: Any, found: list[Any]) -> dict[Any, Any]:
    """The largest norm for each of these labels."""
    if not isinstance(l2_norm_clip, Mapping):
        return dict.fromkeys(found, l2_norm_clip)
    missing = set(found) - set(l2_norm_clip)
    if missing:
        raise ValueError(
            f"`l2_norm_clip` has no entry for {list(missing)}: it has "
            f"{list(l2_norm_clip)}. Expected one for every label in `groups`."
        )
    return dict(l2_norm_clip)
