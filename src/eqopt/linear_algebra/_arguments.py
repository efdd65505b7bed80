"""Checks of arguments; the values of traced arrays are not checked."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._arguments.checks import check_interval
from .._errors import InputError


def check_array(
    owner: str, name: str, value: Any, ndims: tuple[int, ...], kind: Any = np.inexact
) -> None:
    """Raises unless it is an array of this kind with an allowed number of axes."""
    dtype: Any = getattr(value, "dtype", object)
    if jnp.issubdtype(dtype, kind) and np.ndim(value) in ndims:
        return
    wanted = "floating-point" if kind is np.floating else "floating-point or complex"
    axes = " or ".join(map(str, ndims))
    raise InputError(
        owner,
        f"`{name}` must be a {wanted} array with {axes} axes, but is of type "
        f"{type(value).__name__} with shape {np.shape(value)} and dtype {dtype}. For a "
        "stack of arrays, use `jax.vmap`.",
    )


def check_square(owner: str, name: str, matrix: Any, kind: Any = np.inexact) -> None:
    """Raises unless `matrix` is an array of this kind, square and not empty."""
    check_array(owner, name, matrix, (2,), kind)
    rows, columns = np.shape(matrix)
    if rows != columns or rows == 0:
        raise InputError(
            owner, f"`{name}` must be a square matrix, but has shape {matrix.shape}."
        )


def check_scalar(owner: str, name: str, value: Any, includes_zero: bool = True) -> None:
    """Raises unless `value` is a finite real number or 0-d array, not negative."""
    if np.ndim(value) != 0:
        raise InputError(
            owner,
            f"`{name}` must be a number or a 0-d array, but has shape "
            f"{np.shape(value)}.",
        )
    check_interval(
        owner, name, value, 0, includes_low=includes_zero, includes_high=False
    )
