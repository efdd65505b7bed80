"""Converts arguments of losses to arrays: checked, masked, in sufficient precision.

Losses never broadcast one argument to another: `(32,)` and `(32, 1)` would become
`(32, 32)`, and training would silently do something else. Only single numbers are
broadcast.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Real

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
    owner: str, name: str, value: RealScalarLike, dtype: Any, *bounds: Interval
) -> Float[Array, ""]:
    """A number within bounds as an array, by default one that is not negative."""
    check_number_in(owner, name, value, *bounds)
    return jnp.asarray(value).astype(dtype)


def check_shape(
    owner: str, name: str, x: Any, shape: tuple[int, ...], like: str
) -> None:
    """Raises unless `x` has this shape, the shape of `like`."""
    if jnp.shape(x) == shape:
        return
    fix = f"Nothing is broadcast: insert or drop axes, as in `{name}[:, None]`."
    is_integer = jnp.issubdtype(jnp.result_type(x), jnp.integer)
    if name == "labels" and is_integer and jnp.shape(x) == shape[:-1]:
        fix = f"Convert integers with `jax.nn.one_hot(labels, {shape[-1]})`."
    raise InputError(
        owner,
        f"`{name}` must have the shape of `{like}`, {shape}, but has shape "
        f"{jnp.shape(x)}. {fix}",
    )


def widen_alike(owner: str, *, or_number: bool = False, **arrays: Any) -> list[Array]:
    """The arrays in one dtype, as in `widen`; raises unless the shapes are equal.

    `or_number`: whether all but the first may also be single numbers.
    """
    (name, array), *others = arrays.items()
    for other, x in others:
        if not (or_number and jnp.ndim(x) == 0):
            check_shape(owner, other, x, jnp.shape(array), name)
    return widen(*arrays.values())


def check_labels(owner: str, name: str, array: Any, labels: Any, axes: Any) -> None:
    """Raises unless there is one label for each index along the other axes."""
    shape = jnp.shape(array)
    expected = tuple(n for i, n in enumerate(shape) if i not in axes)
    if jnp.shape(labels) != expected:
        raise InputError(
            owner,
            f"`labels` must be integers of shape {expected}, like `{name}` without the "
            f"axis of the classes, but has shape {jnp.shape(labels)}. Convert one-hot "
            "labels with `jnp.argmax`.",
        )


def as_axes(owner: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front; all of them for `None`."""
    axes = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    found = tuple(i + ndim if i < 0 else i for i in axes)
    if not all(0 <= i < ndim for i in found) or len(set(found)) < len(found):
        raise InputError(
            owner,
            f"`axis` must be distinct axes from {-ndim} to {ndim - 1}, but is {axis}.",
        )
    return found


def as_mask(
    owner: str, where: RealArrayLike | None, shape: tuple[int, ...], axes: Any
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
    fits = len(mask.shape) == len(shape) and all(
        m in (1, n) for m, n in zip(mask.shape, shape, strict=True)
    )
    if not fits:
        raise InputError(
            owner,
            f"`where` must have shape {shape}, with 1 instead of any of these numbers, "
            f"or {reduced}, but has shape {mask.shape}.",
        )
    return jnp.broadcast_to(mask, shape)


def is_label(labels: Integer[Array, "*shape"], count: int) -> Bool[Array, "*shape"]:
    """Whether each label names one of `count` classes."""
    wide = at_least_int32(labels)
    return (wide >= 0) & (wide < count)


def is_class(
    labels: Integer[Array, "*shape"], count: int
) -> Bool[Array, "*shape classes"]:
    """Whether each label names each of `count` classes."""
    wide = at_least_int32(labels)
    classes = lax.broadcasted_iota(wide.dtype, (*wide.shape, count), wide.ndim)
    return wide[..., None] == classes


def at_least_int32(labels: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """The labels in a dtype that can be compared to any class.

    In a comparison of labels of 8 bits with 256, JAX would take 256 for 0.
    """
    return labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels


def pick(
    x: Float[Array, "*shape classes"], labels: Integer[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The element of the last axis at the label, or any if the label is out of range."""
    if x.shape[-1] == 0:
        return jnp.zeros(labels.shape, x.dtype)
    index = jnp.where(is_label(labels, x.shape[-1]), labels, jnp.zeros_like(labels))
    return _pick(x, index)


@jax.custom_jvp
def _pick(
    x: Float[Array, "*shape classes"], index: Integer[Array, "*shape"]
) -> Float[Array, "*shape"]:
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
