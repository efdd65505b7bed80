"""Sums over all leaves, for optimizers that need values of the whole model."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arguments.extra import given_norm
from .._errors import InputError
from .._platforms import compute_once, read_apart
from .._trees.leaves import align, flatten_updates, listed
from .._types import Leaf, PyTree, Scalar, Updates
from ..numerics._numerics import at_least_float32, common_dtype
from ..tree import norm
from .equation import Equation, cached
from .leafwise import Operation, bind, check_names, load_row, run_rows


def global_norm(updates: Updates, extra: Mapping[str, Any]) -> Float[Array, ""]:
    """The norm of all updates: the extra argument `grad_norm` if it is given."""
    given = given_norm(extra)
    return norm(updates) if given is None else at_least_float32(jnp.asarray(given))


def sum_over_leaves(
    equation: Equation,
    updates: Updates,
    reads: Mapping[str, PyTree] | None = None,
    shared: Mapping[str, Any] | None = None,
    in_own_pass: bool = False,
) -> tuple[Float[Array, ""], ...]:
    """Sums the results of `equation` over all leaves.

    Use it if a step depends on the whole model: on a distance, an inner product or a
    norm. One pass over memory computes all sums, and creates no array of the size of a
    leaf.

    !!! example

        ```python
        @eqopt.equation
        def products(g, p):
            return jnp.sum(g * p), jnp.sum(p * p)


        slope, size = eqopt.sum_over_leaves(products, grads, {"p": params})
        ```

    **Arguments:**

    - `equation`: an [`eqopt.equation`][] that returns a real scalar or a tuple of real
        scalars. Its first argument is the update of the leaf, further positional
        arguments are leaves of `reads`, and keyword-only arguments come from `shared`.
        It computes in at least float32.
    - `updates`: a tree of arrays. Where it has `None`, nothing is added.
    - `reads`: trees like `updates`, by argument name.
    - `shared`: values by argument name, as for [`eqopt.leafwise`][].
    - `in_own_pass`: whether a GPU reads the leaves for the sums alone. XLA for a GPU can
        compute sums and new moments in one pass, but then it stores some of the moments
        in temporary memory, and copies them. Defaults to `False`.

    **Returns:**

    A tuple of the sums, 0-d arrays, even if there is only one.

    **Raises:**

    A `ValueError` if a tree in `reads` is missing, or does not fit `updates`.
    """
    reads, shared = reads or {}, shared or {}
    leaves, treedef = flatten_updates(updates)
    check_names(equation, reads, shared)
    if missing := [name for name in equation.leaves if name not in reads]:
        raise InputError(f"`{equation.name}` needs {listed(missing)} in `reads`.")
    columns = [align(treedef, reads[k], k, updates) for k in equation.leaves]
    rows = {
        i: row
        for i, row in enumerate(zip(leaves, *columns, strict=True))
        if row[0] is not None
    } or {0: (jnp.zeros(0),) * (1 + len(columns))}
    operation, values = bind(equation, (), shared)
    run = _kernel(operation, in_own_pass)
    parts = run_rows(run, operation, updates, values, rows).values()
    return tuple(_sum(column) for column in zip(*parts, strict=True))


@cached
def _kernel(operation: Operation, in_own_pass: bool) -> Callable:
    @jax.jit
    def run(values, row):
        with jax.numpy_dtype_promotion("standard"):
            row = read_apart(row) if in_own_pass else row
            arguments, shared = load_row(operation, values, row)
            out = operation.equation(*arguments, **shared)
        return out if isinstance(out, tuple) else (out,)

    return run


def dot(x: Leaf, y: Leaf) -> Scalar:
    r"""$\operatorname{Re} \langle x, y \rangle$ of two leaves, for such an equation."""
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(y):
        return jnp.sum(x.real * y.real) + jnp.sum(x.imag * y.imag)
    return jnp.sum(x * y)


def inner(x: Leaf, y: Leaf) -> Scalar:
    """`dot` as a matrix product, which is faster if nothing else is fused with it."""
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(y):
        return inner(x.real, y.real) + inner(x.imag, y.imag)
    if jax.typeof(x).sharding.mesh.explicit_axes:
        return dot(x, y)  # `dot` does not need the sharding of its result
    axes = tuple(range(x.ndim))
    return lax.dot_general(x, y, ((axes, axes), ((), ())), precision="highest")


def _sum(parts: tuple[Array, ...]) -> Array:
    dtype = common_dtype(*(part.dtype for part in parts))
    return jnp.sum(compute_once(jnp.stack([x.astype(dtype) for x in parts])))
