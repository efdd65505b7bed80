"""Sums over all leaves, for optimizers that need values of the whole model."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, PyTree

from ._cpu.order import after, materialized
from ._equations import KERNELS, Equation, compute_dtype, widen
from ._leaves import align, flatten_updates
from ._types import Updates
from .numerics import as_float, common_dtype


def sum_over_leaves(
    equation: Equation,
    updates: Updates,
    reads: Mapping[str, PyTree] | None = None,
    shared: Mapping[str, Any] | None = None,
    apart: bool = True,
    in_turn: str | None = None,
) -> tuple[Float[Array, ""], ...]:
    """The sums over all leaves of the scalars that `equation` returns for each leaf.

    For the `measure` of a [`eqopt.Leafwise`][]. One pass over memory computes all sums,
    without temporary arrays of the size of a leaf.

    **Arguments:**

    - `equation`: its first argument is the update of the leaf, further positional ones
        are leaves of `reads`, keyword-only ones are `shared`. It returns one real
        scalar or a tuple of them, computed in at least float32.
    - `updates`: where it has `None`, nothing is added.
    - `reads`: trees like `updates`, by the names of the arguments.
    - `shared`: numbers and 0-d arrays; bools, strings and `None` are static.

    - `apart`: whether it must not share work with other equations of the step. If it is
        to sum up what they compute anyway, as new moments, let it.
    - `in_turn`: one of `shared`, which XLA on a CPU is to read for each leaf once the
        leaf before has been summed up, where the equation makes an array of it.

    **Returns:**

    The sums, also where there is just one.
    """
    reads, shared = reads or {}, shared or {}
    leaves, treedef = flatten_updates(updates)
    columns = [align(treedef, reads[k], k, updates) for k in equation.leaves]
    rows = [
        row for row in zip(leaves, *columns, strict=True) if row[0] is not None
    ] or [(jnp.zeros(0),) * (1 + len(columns))]
    static = {k: v for k, v in shared.items() if v is None or isinstance(v, bool | str)}
    traced = {k: as_float(v) for k, v in shared.items() if k not in static}
    run = _kernel(equation, tuple(static.items()), apart)
    parts = []
    for row in rows:
        if in_turn is not None and parts:
            traced[in_turn] = after(parts[-1][-1], traced[in_turn])
        parts.append(run(row, traced))
    return tuple(_sum(column) for column in zip(*parts, strict=True))


@functools.lru_cache(KERNELS)
def _kernel(
    equation: Equation, static: tuple[tuple[str, Any], ...], apart: bool
) -> Callable:
    @jax.jit
    def run(row, traced):
        with jax.numpy_dtype_promotion("standard"):
            real = compute_dtype(row)
            scalars = {k: jnp.asarray(v).astype(real) for k, v in traced.items()}
            if apart:
                # Or XLA on a CPU fills an array with each of the scalars, to be shared by
                # all leaves of one shape.
                g, scalars = materialized((row[0], scalars))
                row = (g, *row[1:])
            out = equation(*(widen(x, real) for x in row), **scalars, **dict(static))
        return out if isinstance(out, tuple) else (out,)

    return run


def dot(x: Inexact[Array, "*leaf"], y: Inexact[Array, "*leaf"]) -> Float[Array, ""]:
    r"""$\operatorname{Re} \langle x, y \rangle$ of two leaves, for such an equation."""
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(y):
        return jnp.sum(x.real * y.real) + jnp.sum(x.imag * y.imag)
    return jnp.sum(x * y)


def inner(x: Inexact[Array, "*leaf"], y: Inexact[Array, "*leaf"]) -> Float[Array, ""]:
    """The same as a product of matrices, which is faster where nothing else is fused."""
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(y):
        return inner(x.real, y.real) + inner(x.imag, y.imag)
    if jax.typeof(x).sharding.mesh.explicit_axes:
        return dot(x, y)  # `dot` does not need the sharding of its result
    axes = tuple(range(x.ndim))
    return lax.dot_general(x, y, ((axes, axes), ((), ())), precision="highest")


def _sum(parts: tuple[Array, ...]) -> Array:
    dtype = common_dtype(*(part.dtype for part in parts))
    return jnp.sum(materialized(jnp.stack([x.astype(dtype) for x in parts])))
