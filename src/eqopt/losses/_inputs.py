"""Arguments of losses as arrays, and logarithms without cancellation."""

import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Real
from numpy.lib.array_utils import normalize_axis_tuple

from .._arguments.checks import check_number_in
from .._errors import InputError
from .._types import Interval, RealScalarLike
from ..numerics._numerics import wide_dtype


RealArrayLike: TypeAlias = Real[ArrayLike, "..."] | Bool[ArrayLike, "..."]
IntegerArrayLike: TypeAlias = Integer[ArrayLike, "..."]
Axes: TypeAlias = int | tuple[int, ...] | None


def widen(*values: Any) -> list[Array]:
    """The values as arrays of one real dtype: float64 if one of them has it, else
    float32.

    Python numbers do not count.
    """
    known = [jnp.asarray(x) for x in values if hasattr(x, "dtype")]
    floats = [x.dtype for x in known if jnp.issubdtype(x.dtype, jnp.floating)]
    dtype = wide_dtype(*floats)
    return [jnp.asarray(x).astype(dtype) for x in values]


def as_scalar(
    name: str, value: RealScalarLike, dtype: Any, *bounds: Interval
) -> Float[Array, ""]:
    """A number within bounds as an array, by default one that is not negative."""
    check_number_in(name, value, *bounds)
    return jnp.asarray(value).astype(dtype)


def check_shape(
    name: str, x: Any, shape: tuple[int, ...], like: str, fix: str = ""
) -> None:
    """Raises unless `x` has this shape, the shape of `like`."""
    if jnp.shape(x) == shape:
        return
    is_integer = jnp.issubdtype(jnp.result_type(x), jnp.integer)
    if not fix and name == "labels" and is_integer and jnp.shape(x) == shape[:-1]:
        fix = f"Convert integers with `jax.nn.one_hot(labels, {shape[-1]})`."
    fix = fix or f"Nothing is broadcast: insert or drop axes, as in `{name}[:, None]`."
    raise InputError(
        f"`{name}` must have the shape of {like}, {shape}, but has shape "
        f"{jnp.shape(x)}. {fix}"
    )


def widen_alike(*, or_number: bool = False, **arrays: Any) -> list[Array]:
    """The arrays in one dtype, as in `widen`; raises unless the shapes are equal.

    `or_number`: whether all but the first may also be single numbers.
    """
    (name, array), *others = arrays.items()
    for other, x in others:
        if not (or_number and jnp.ndim(x) == 0):
            check_shape(other, x, jnp.shape(array), f"`{name}`")
    return widen(*arrays.values())


def check_labels(name: str, array: Any, labels: Any, axes: Any) -> None:
    """Raises unless there is one label for each index along the other axes."""
    shape = jnp.shape(array)
    expected = tuple(n for i, n in enumerate(shape) if i not in axes)
    like = f"`{name}` without the axis of the classes"
    fix = "Convert one-hot labels with `jnp.argmax`."
    check_shape("labels", labels, expected, like, fix)


def as_axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front; all of them for `None`."""
    axes = range(ndim) if axis is None else axis
    return normalize_axis_tuple(axes, ndim, "axis")


def as_mask(
    where: RealArrayLike | None, shape: tuple[int, ...], axes: Any
) -> Bool[Array, "..."]:
    """`where` as an array of bools of the given shape; all true for `None`.

    It may omit the axes that the loss sums over, or have size 1 along any axis.
    """
    if where is None:
        return jnp.ones(shape, bool)
    mask = jnp.asarray(where).astype(bool)
    reduced = tuple(n for i, n in enumerate(shape) if i not in axes)
    if mask.shape == reduced:
        mask = jnp.expand_dims(mask, axes)
    if mask.ndim != len(shape) or any(
        m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)
    ):
        raise InputError(
            f"`where` must have shape {shape}, with 1 instead of any of these numbers, "
            f"or {reduced}, but has shape {mask.shape}."
        )
    return jnp.broadcast_to(mask, shape)


def is_label(labels: Integer[Array, "*shape"], count: int) -> Bool[Array, "*shape"]:
    """Whether each label names one of `count` classes."""
    wide = at_least_int32(labels)
    return (wide >= 0) & (wide < count)


def is_class(labels, count):
    """Whether each label names each of `count` classes."""
    wide = at_least_int32(labels)
    classes = lax.broadcasted_iota(wide.dtype, (*wide.shape, count), wide.ndim)
    return wide[..., None] == classes


def at_least_int32(labels: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """The labels in a dtype that can be compared to any class.

    In a comparison of labels of 8 bits with 256, JAX would take 256 for 0.
    """
    return labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels


def pick(x, labels):
    """The element of the last axis at the label, or any if the label is out of range."""
    if x.shape[-1] == 0:
        return jnp.zeros(labels.shape, x.dtype)
    index = jnp.where(is_label(labels, x.shape[-1]), labels, jnp.zeros_like(labels))
    return _pick(x, index)


@jax.custom_jvp
def _pick(x, index):
    return jnp.take_along_axis(x, index[..., None], axis=-1, mode="clip")[..., 0]


@_pick.defjvp
def _pick_jvp(primals: Any, tangents: Any) -> Any:
    # The transpose of an index writes to an array of zeros, one more for the memory to
    # hold. The transpose of this sum is part of whatever else the derivative of `x` is.
    x, index = primals
    dx = jnp.where(is_class(index, x.shape[-1]), tangents[0], 0)
    return _pick(x, index), jnp.sum(dx, -1)


def one_value_each(loss: Float[Array, "*shape"], like: Any) -> Float[Array, "*shape"]:
    """The loss in the dtype of the predictions."""
    return loss.astype(jax.dtypes.canonicalize_dtype(like.dtype))


#
# Logarithms, where minus infinity means zero, and sums without cancellation
#


def weighted(weights, logs):
    r"""$w \log p$, which is 0 where $w = p = 0$, with finite derivatives."""
    is_nothing = (weights == 0) & jnp.isinf(logs)
    return weights * jnp.where(is_nothing, 0, logs)


def log_sum(x, axes, mask):
    r"""$\log \sum_i e^{x_i}$ over unmasked elements, with `keepdims`, in two summands.

    The first one is a constant for derivatives, and may be large: add it to something
    of its size first. Elements of minus infinity are allowed. If there are no others,
    the sum is the lowest finite number.
    """
    x = jnp.where(mask, x, -jnp.inf)
    top = _finite_maximum(x, axes)
    total = jnp.sum(jnp.exp(x - top), axes, keepdims=True)
    log = jnp.log(jnp.where(total == 0, 1, total))
    return top, jnp.where(total == 0, jnp.finfo(x.dtype).min, log)


def log_softmax(x, axes, mask):
    """The log-softmax of unmasked elements, and minus infinity for the rest.

    The logarithm of a probability near 1 has all its digits. If all elements are masked
    or minus infinity, so is the result.
    """
    return _log_softmax(jnp.where(mask, x, -jnp.inf), axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_softmax(x, axes):
    top = jnp.max(x, axes, keepdims=True, initial=-jnp.inf)
    top = jnp.where(top > -jnp.inf, top, 0)
    # Zero also if the largest is infinite: then all others are impossible.
    gaps = jnp.where(x == top, 0, x - top)
    # The largest term of the sum is 1, and `log1p` adds it to the others. If several
    # are the largest, all but one of them count as others.
    ones = jnp.sum((x == top).astype(x.dtype), axes, keepdims=True)
    others = jnp.sum(jnp.where(x == top, 0, jnp.exp(gaps)), axes, keepdims=True)
    others = others + (ones - 1)
    return gaps - jnp.log1p(jnp.where(others == -1, 0, others))


@_log_softmax.defjvp
def _log_softmax_jvp(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    log_p = _log_softmax(*primals, axes)
    [dx] = tangents
    return log_p, dx - jnp.sum(jnp.exp(log_p) * dx, axes, keepdims=True)


def logaddexp(a, b):
    """`jnp.logaddexp` for finite numbers, with half as many operations."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


def excess(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$x + e^{-x} - 1$, which is never negative, with all digits if $x$ is small."""
    is_small = jnp.abs(x) < 0.5
    near = small_excess(jnp.where(is_small, x, 0))
    return jnp.where(is_small, near, x + jnp.expm1(-x))


def small_excess(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`excess` of numbers below 0.5 in size, from the series."""
    # x^2 / 2 (1 - x / 3 (1 - x / 4 (...))), with the terms that float32 or float64 has.
    series = jnp.ones_like(x)
    for k in range(15 if x.dtype.itemsize > 4 else 9, 2, -1):
        series = 1 - x * (1 / k) * series
    return x * x / 2 * series


@jax.custom_jvp
def with_derivatives_of(smooth, value):
    """`value`, with the derivatives of `smooth`, another formula for the same number.

    One formula may have simple derivatives, and the other no cancellation.
    """
    return value


@with_derivatives_of.defjvp
def _with_derivatives_of_jvp(primals: Any, tangents: Any) -> Any:
    return with_derivatives_of(*primals), tangents[0]


def _finite_maximum(x, axes):
    """The maximum, as a constant with `keepdims`, or 0 if it is not finite."""
    top = lax.stop_gradient(jnp.max(x, axes, keepdims=True, initial=-jnp.inf))
    return jnp.where(jnp.isfinite(top), top, 0)
