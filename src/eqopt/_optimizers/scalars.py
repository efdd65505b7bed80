"""Numbers in a state, and hyperparameters in their precision."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._transforms.scale import at
from .._trees.leaves import parameters
from .._trees.precision import compute_dtype
from .._types import Params, Scalar
from ..numerics._numerics import bias_correction, safe_increment, safe_sqrt


def scalar(value: Any, params: Params) -> Scalar:
    """A number for the state in a new buffer, in the precision of the equations."""
    dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
    return jnp.array(value, dtype)


def value_at(opt: Any, name: str, count: Any, like: Array) -> Scalar:
    """The current value of a number or a schedule, in the dtype of `like`."""
    return jnp.asarray(at(opt, name, count), like.dtype)


def corrected_step(opt: Any, d: Array, count: Any) -> Scalar:
    r"""$d\, \eta_t$ with the two bias corrections of Adam, taken from `opt`."""
    t = safe_increment(count)
    b1, b2, eta = (value_at(opt, x, count, d) for x in ("b1", "b2", "learning_rate"))
    correction = safe_sqrt(bias_correction(b2, t)) / bias_correction(b1, t)
    return d * eta * correction
