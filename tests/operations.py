"""JAX's operations in NumPy; `None` if JAX might round differently."""

import jax.numpy as jnp
import numpy as np


def _is_real_float(dtype):
    return jnp.issubdtype(dtype, jnp.floating)


def reduce(operation, x, axes):
    return operation.reduce(x, axes, x.dtype) if x.size else None


def div(x, y):
    return np.divide(x, y) if jnp.issubdtype(x.dtype, jnp.inexact) else None


def sqrt(x):
    return np.sqrt(x) if _is_real_float(x.dtype) else None


def shift_right_logical(x, y):
    return np.right_shift(x, y) if x.dtype.kind == "u" else None


def select_n(which, *cases):
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else None


def convert_element_type(x, dtype):
    """Floats that are out of an integer's range are left to JAX."""
    if _is_real_float(x.dtype):
        is_small = dtype == np.int32 and np.all(abs(x) < 2**31)
        return x.astype(dtype) if is_small or _is_real_float(dtype) else None
    return x.astype(dtype) if x.dtype.kind in "biu" else None


def broadcast_in_dim(x, shape, dimensions):
    axes = [1] * len(shape)
    for axis, size in zip(dimensions, np.shape(x), strict=True):
        axes[axis] = size
    return np.broadcast_to(np.reshape(x, axes), shape)


def sliced(x, starts, limits, strides):
    return x[tuple(map(slice, starts, limits, strides or [1] * len(starts)))]


def dynamic_slice(x, *starts_and_sizes):
    *starts, sizes = starts_and_sizes
    last = np.subtract(x.shape, sizes)
    starts = [min(max(int(i), 0), n) for i, n in zip(starts, last, strict=True)]
    return sliced(x, starts, np.add(starts, sizes), None)


def integer_pow(x, exponent):
    return np.square(x) if exponent == 2 else None


def iota(dtype, shape, axis):
    sizes = [n if i == axis else 1 for i, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[axis]).astype(dtype).reshape(sizes), shape)


def pad(x, value, padding):
    low, high, between = np.array(padding, int).reshape(-1, 3).T
    if min([0, *low, *high]) < 0:
        return None
    size = np.maximum((np.array(np.shape(x), int) - 1) * (between + 1) + 1, 0)
    padded = np.full(low + size + high, value)
    padded[tuple(map(slice, low, low + size, between + 1))] = x
    return padded


def reshape(x, shape, order):
    return np.reshape(x, shape) if order is None else None


def split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def unstack(x, axis):
    return [*np.moveaxis(x, axis, 0)]
