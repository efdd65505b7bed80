"""Checks of arguments; the values of traced arrays are not checked."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._arguments.checks import check_interval


def check_array(owner: str, name: str, value: Any, ndims: tuple[int, ...]) -> None:
    """Raises unless `value` is an inexact array with an allowed number of axes."""
    wanted = " or ".join(map(str, ndims))
    if not hasattr(value, "dtype"):
        raise TypeError(
            f"{owner}: `{name}` must be an array with {wanted} axes, but has type "
            f"{type(value).__name__}. Convert it with `jnp.asarray`."
        )
    if not jnp.issubdtype(value.dtype, np.inexact):
        raise TypeError(
            f"{owner}: `{name}` must have a floating-point dtype, but has dtype "
            f"{value.dtype}. Convert it with `.astype(jnp.float32)`."
        )
    if np.ndim(value) not in ndims:
        raise ValueError(
            f"{owner}: `{name}` must have {wanted} axes, but has shape "
            f"{np.shape(value)}. For a stack of arrays, use `jax.vmap`."
        )


def check_real(owner: str, name: str, value: Any) -> None:
    """Raises a `TypeError` if the array `value` is complex."""
    if jnp.iscomplexobj(value):
        raise TypeError(f"{owner}: `{name}` must be real, but is {value.dtype}.")


def check_square(owner: str, name: str, matrix: Any) -> None:
    """Raises unless `matrix` is an array of inexact dtype, square and not empty."""
    check_array(owner, name, matrix, (2,))
    rows, columns = np.shape(matrix)
    if rows != columns or rows == 0:
        raise ValueError(
            f"{owner}: `{name}` must be a square matrix, but has shape "
            f"{np.shape(matrix)}."
        )


def check_scalar(owner: str, name: str, value: Any, includes_zero: bool = True) -> None:
    """Raises unless `value` is a finite real number or 0-d array, not negative."""
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: `{name}` must be a number or a 0-d array, but has shape "
            f"{np.shape(value)}."
        )
    check_interval(
        owner, name, value, 0, includes_low=includes_zero, includes_high=False
    )
