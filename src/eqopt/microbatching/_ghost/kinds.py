"""Equations that are linear in a parameter, and how its gradient factors."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Int

from ..._jax_internals import JaxprEqn
from .._interpret import shape_of
from .factors import Layout, Picks, Rows


# For each axis of an input of an equation, the axis of the parameter that it is; `None`
# for an axis of size 1.
Axes: TypeAlias = tuple[int | None, ...]


class Kind(NamedTuple):
    """The properties of a primitive.

    **Attributes:**

    - `layout`: a function `(equation, operand, axes, shape) -> Layout` for the
        parameter that is input number `operand` of the equation; `None` if its gradient
        does not factor.
    - `factor`: a function `(equation, operand, layout, inputs, cotangent) -> factor`.
    - `is_lookup`: whether the factor is `Picks`.
    """

    layout: Callable[[JaxprEqn, int, Axes, tuple[int, ...]], Layout | None]
    factor: Callable[[JaxprEqn, int, Layout, Sequence[Any], Array], Rows | Picks]
    is_lookup: bool


def _dot_layout(
    eqn: JaxprEqn, operand: int, axes: Axes, shape: tuple[int, ...]
) -> Layout:
    batch, summed, free = _dot_axes(eqn, operand)
    named = (_some([axes[i] for i in group]) for group in (batch, summed, free))
    return Layout(shape, shape, *named)


def _dot_factor(
    eqn: JaxprEqn, operand: int, layout: Layout, inputs: Sequence[Any], cotangent: Array
) -> Rows:
    batch, _, free = _dot_axes(eqn, operand)
    other_batch, other_summed, other_free = _dot_axes(eqn, 1 - operand)
    other = inputs[1 - operand]
    if not jnp.issubdtype(other.dtype, jnp.inexact):
        other = other.astype(cotangent.dtype)  # features may be integers or bools
    left = _cut(
        jnp.transpose(other, (*other_batch, *other_free, *other_summed)),
        (len(other_batch), len(other_free)),
    )
    # The output has the batch axes, the axes of its first input, and the axes of the
    # second.
    if operand == 0:
        count = len(batch)
        mine = range(count, count + len(free))
        theirs = range(count + len(free), cotangent.ndim)
        cotangent = jnp.transpose(cotangent, (*range(count), *theirs, *mine))
    right = _cut(cotangent, (len(batch), len(other_free)))
    return Rows(left, right, layout)


def _dot_axes(eqn: JaxprEqn, operand: int) -> tuple[list[int], list[int], list[int]]:
    summed, batch = (list(x[operand]) for x in eqn.params["dimension_numbers"])
    ndim = len(shape_of(eqn.invars[operand]))
    return batch, summed, [i for i in range(ndim) if i not in (*batch, *summed)]


def _cut(x: Array, counts: tuple[int, int]) -> Inexact[Array, "groups rows columns"]:
    """Merges the first axes, the axes after them, and the rest."""
    i, j = counts[0], counts[0] + counts[1]
    parts = x.shape[:i], x.shape[i:j], x.shape[j:]
    return jnp.reshape(x, [math.prod(part) for part in parts])


def _conv_layout(
    eqn: JaxprEqn, operand: int, axes: Axes, shape: tuple[int, ...]
) -> Layout | None:
    moved = any(axis not in (i, None) for i, axis in enumerate(axes))
    if operand != 1 or moved or len(axes) != len(shape):
        return None
    if eqn.params["batch_group_count"] != 1:
        return None
    out, features, *window = eqn.params["dimension_numbers"].rhs_spec
    groups = eqn.params["feature_group_count"]
    # The axis of the outputs is split into groups and the outputs of each group.
    view = (*shape[:out], groups, shape[out] // groups, *shape[out + 1 :])
    left = [i + (i > out) for i in (features, *window)]
    return Layout(
        shape,
        view,
        *(tuple(i for i in x if view[i] != 1) for x in ([out], left, [out + 1])),
    )


def _conv_factor(
    eqn: JaxprEqn, operand: int, layout: Layout, inputs: Sequence[Any], cotangent: Array
) -> Rows:
    spec = eqn.params["dimension_numbers"]
    groups = eqn.params["feature_group_count"]
    out = jnp.transpose(cotangent, spec.out_spec)
    rows, columns = out.shape[0], out.shape[1]
    right = jnp.reshape(out, (rows, groups, columns // groups, -1))
    patches = jnp.reshape(
        _patches(eqn, inputs[0], out.shape[2:]), (rows, groups, -1, right.shape[-1])
    )
    left, right = (jnp.transpose(x, (1, 0, 3, 2)) for x in (patches, right))
    return Rows(_cut(left, (1, 2)), _cut(right, (1, 2)), layout)


def _patches(
    eqn: JaxprEqn, x: Array, out_shape: Sequence[int]
) -> Inexact[Array, "rows features window *out"]:
    """The factors of each element of the window."""
    spec, params = eqn.params["dimension_numbers"], eqn.params
    x = jnp.transpose(x, spec.lhs_spec)
    padding = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(
            params["padding"], params["lhs_dilation"], strict=True
        )
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    kernel = shape_of(eqn.invars[1])
    window = tuple(kernel[i] for i in spec.rhs_spec[2:])
    strides = params["window_strides"]
    slices = []
    for offset in itertools.product(*map(range, window)):
        start = [i * d for i, d in zip(offset, params["rhs_dilation"], strict=True)]
        stop = [
            i + (n - 1) * stride + 1
            for i, n, stride in zip(start, out_shape, strides, strict=True)
        ]
        slices.append(
            lax.slice(x, (0, 0, *start), (*x.shape[:2], *stop), (1, 1, *strides))
        )
    return jnp.stack(slices, 2)


def _table_layout(
    eqn: JaxprEqn, operand: int, axes: Axes, shape: tuple[int, ...]
) -> Layout | None:
    table = shape_of(eqn.invars[0])
    cut = [i for i, n in enumerate(eqn.params["slice_sizes"]) if n != table[i]]
    if operand != 0 or len(cut) != 1 or eqn.params["slice_sizes"][cut[0]] != 1:
        return None
    numbers = eqn.params.get("dimension_numbers")
    if numbers is not None and numbers.operand_batching_dims:
        return None
    right = [axis for i, axis in enumerate(axes) if i != cut[0]]
    return Layout(shape, shape, (), _some([axes[cut[0]]]), _some(right))


def _gather_factor(
    eqn: JaxprEqn, operand: int, layout: Layout, inputs: Sequence[Any], cotangent: Array
) -> Picks:
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    positions = _positions(eqn)
    mode = params["mode"]
    if mode is lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        # JAX has no gradient for indices that break the promise of being in bounds.
        mode = lax.GatherScatterMode.FILL_OR_DROP
    index = lax.gather(
        positions,
        inputs[1],
        numbers,
        (1,) * positions.ndim,
        mode=mode,
        fill_value=positions.size,
    )
    rows = [i for i in range(cotangent.ndim) if i not in numbers.offset_dims]
    right = jnp.transpose(cotangent, (*rows, *numbers.offset_dims))
    return Picks(index.ravel(), _cut(right, (0, len(rows)))[0], layout)


def _dynamic_slice_factor(
    eqn: JaxprEqn, operand: int, layout: Layout, inputs: Sequence[Any], cotangent: Array
) -> Picks:
    positions = _positions(eqn)
    index = lax.dynamic_slice(positions, inputs[1:], (1,) * positions.ndim)
    return Picks(index.ravel(), cotangent.reshape(1, -1), layout)


def _positions(eqn: JaxprEqn) -> Int[Array, "..."]:
    """For the rows of a table: a look-up shows which row it uses."""
    pairs = zip(shape_of(eqn.invars[0]), eqn.params["slice_sizes"], strict=True)
    shape = [1 if size == part else size for size, part in pairs]
    return jnp.arange(math.prod(shape)).reshape(shape)


def _some(axes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(axis for axis in axes if axis is not None)


KINDS = {
    "dot_general": Kind(_dot_layout, _dot_factor, False),
    "conv_general_dilated": Kind(_conv_layout, _conv_factor, False),
    "gather": Kind(_table_layout, _gather_factor, True),
    "dynamic_slice": Kind(_table_layout, _dynamic_slice_factor, True),
}
