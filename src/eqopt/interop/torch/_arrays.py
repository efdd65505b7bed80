"""Tensors as JAX arrays."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._errors import InputError
from ...numerics._numerics import common_dtype


def array_of(tensor: Any) -> np.ndarray:
    """The values of a tensor, on any device, or of an array."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # not supported by NumPy
        import torch

        return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def number(x: Any) -> Any:
    """A hyperparameter of torch, a number or a tensor, as a Python number."""
    return x.item() if hasattr(x, "item") else x


def fitted(
    given: np.ndarray, expected: Any, what: str, transposed: bool = False
) -> Array:
    """A copy of `given` with the shape and dtype of `expected`.

    Axes of length 1 may be missing or surplus, and an array may become wider.
    """
    if transposed and given.ndim > 1:
        given = given.swapaxes(-1, -2)
    if not same_shape(given.shape, expected.shape):
        raise InputError(
            None,
            f"{what} has shape {given.shape} in torch, but shape "
            f"{tuple(expected.shape)} is expected. If the matrix is transposed, pass "
            "`transpose`.",
        )
    if common_dtype(given.dtype, expected.dtype) != expected.dtype:
        raise InputError(
            None,
            f"{what} has dtype {given.dtype} in torch, but {expected.dtype} is expected, "
            "which would lose digits. Make the model or the state wider, such as by "
            "`mu_dtype=...`, or convert torch's tensors.",
        )
    return jnp.array(given.reshape(expected.shape), expected.dtype, copy=True)


def same_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes differ at most by axes of length 1."""
    return [n for n in a if n != 1] == [n for n in b if n != 1]


# The entries of torch for a parameter that do not have its shape.
SCALARS = {"step", "mu_product", "eta", "mu"}


def shape_of(entry: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the parameter that torch's `entry` is for, if the entry has it."""
    if "row_var" in entry:
        return (*entry["row_var"].shape[:-1], entry["col_var"].shape[-1])
    shapes = [
        x.shape for key, x in entry.items() if key not in SCALARS and _is_array(x)
    ]
    return tuple(shapes[0]) if shapes else None


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape")
