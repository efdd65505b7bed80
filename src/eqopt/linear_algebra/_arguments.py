"""Checks of arguments; the values of traced arrays are not checked."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._errors import InputError


def check_array(
    owner: str,
    name: str,
    value: Any,
    expected: str,
    fits: Callable[[tuple[int, ...]], bool],
    kind: Any = np.inexact,
) -> None:
    """Raises unless it is an array of this kind whose shape fits: an `expected` one."""
    shape, dtype = np.shape(value), getattr(value, "dtype", object)
    if not (jnp.issubdtype(dtype, kind) and fits(shape)):
        wanted = "floating-point" if kind is np.floating else "floating or complex"
        raise InputError(
            owner,
            f"`{name}` must be a {wanted} {expected}, but is of type "
            f"{type(value).__name__} with shape {shape} and dtype {dtype}. For a stack, "
            "use `jax.vmap`.",
        )


def check_square(owner: str, name: str, matrix: Any, kind: Any = np.inexact) -> None:
    """Raises unless `matrix` is an array of this kind, square and not empty."""
    is_square = lambda shape: len(shape) == 2 and shape[0] == shape[1] > 0
    check_array(owner, name, matrix, "square matrix", is_square, kind)
