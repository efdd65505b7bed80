"""The order in which XLA on a CPU reads and writes arrays, and which ones it keeps.

XLA copies a donated array that two results read, starts all leaves at once, and merges
a sum into all of its readers. When it decides which arrays to copy, it ignores
`lax.optimization_barrier`. But if one array is computed from another, it respects that
order. So this module makes arrays depend on others, by a comparison whose result XLA
cannot know. For accelerators, none of this is compiled.

Measured on two cores, float32, 20 leaves of 1M elements, everything donated:

- `after`, with leaves in turn: LAMB takes 31 ms instead of 62, and 5 % of temporary
  memory instead of 100. SM3 takes 21 ms instead of 57, and 5 % instead of 100. AdamW
  and LARS gain nothing. Compilation takes 10 ms more for each leaf.
- `after`, within a leaf: AdamW with cautious decay takes no temporary memory instead of
  one leaf. XLA stores a quotient that two operations read, even in one loop. It does not
  store a selection between a quotient and zero.
- `alone`: for 12 matrices of 256 x 256, SOAP takes the temporary memory of 9 of them
  instead of 22, and Dion2 the memory of 2.5 instead of 16.
- `materialized`: the compilation of clipping n leaves by their norm takes time n, not
  n^2.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from .._jaxprs import equations
from .._storage import Joined, has_stored, is_stored
from .._typecheck import no_type_check


_Tree = TypeVar("_Tree")

# The name of this code in a profile, to distinguish it from an equation.
SCOPE = "on_cpu"


@no_type_check  # called once per leaf, also with NumPy arrays
def after(first: Array, x: Array) -> Array:
    """`x`; on a CPU, it is read after `first` has been computed.

    If the shapes differ, it waits for the first element of `first`. It does not wait if
    the program is for several devices, because reading one element would require
    communication.
    """
    return _after.bind(x, first)


_after = Primitive("after")
_after.def_impl(lambda x, first: x)
_after.def_abstract_eval(lambda x, first: x)
ad.primitive_jvps[_after] = lambda primals, tangents: (
    _after.bind(*primals),
    tangents[0],
)
batching.primitive_batchers[_after] = lambda arrays, axes: (arrays[0], axes[0])


def _after_on_cpu(ctx: Any, x: Any, first: Any) -> Any:
    x_type, first_type = ctx.avals_in
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    if x_type.shape != first_type.shape and (devices != 1 or 0 in first_type.shape):
        return [x]
    # Types without a mesh: the two arrays may have different meshes.
    types = [ShapedArray(t.shape, t.dtype) for t in (x_type, first_type)]
    lower = mlir.lower_fun(read_after, multiple_results=False)
    return lower(ctx.replace(avals_in=types), x, first)


def read_after(x: Array, first: Array) -> Array:
    with jax.named_scope(SCOPE):
        if x.shape != first.shape:
            first = first[(0,) * first.ndim]
        # No number is less than minus infinity, but XLA does not use this.
        return jnp.where(first.real < -jnp.inf, jnp.zeros_like(x), x)


mlir.register_lowering(_after, lambda ctx, x, first: [x])
mlir.register_lowering(_after, _after_on_cpu, platform="cpu")


@no_type_check
def loaded_after(first: Array, x: Any) -> Any:
    """`x`; if it is stored with scales, they are read after `first` has been computed.

    The scales have to wait, because an equation may load and use a slot before it reads
    any shared value. Waiting for an array as large as the leaf would cost more than it
    saves.
    """
    if not is_stored(x) or isinstance(x, Joined):
        return x
    size = x.like.size
    return jax.tree.map(lambda y: after(first, y) if y.size < size else y, x)


def materialized(tree: _Tree) -> _Tree:
    """`tree`; on a CPU, its arrays are computed once, not once per reader."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef.unflatten(_materialized.bind(*leaves))


def _keep(*arrays: Array) -> Sequence[Array]:
    with jax.named_scope(SCOPE):
        return lax.optimization_barrier(arrays)


_materialized = Primitive("materialized")
_materialized.multiple_results = True
_materialized.def_impl(lambda *arrays: arrays)
_materialized.def_abstract_eval(lambda *types: types)
ad.primitive_jvps[_materialized] = lambda primals, tangents: (
    _materialized.bind(*primals),
    tangents,
)
batching.primitive_batchers[_materialized] = lambda arrays, axes: (
    _materialized.bind(*arrays),
    axes,
)
mlir.register_lowering(_materialized, lambda ctx, *arrays: arrays)
mlir.register_lowering(
    _materialized, mlir.lower_fun(_keep, multiple_results=True), platform="cpu"
)


@no_type_check
def computed_once(store: Callable, old: Any, x: Any, after: Any) -> Any:
    """`store(old, x)`, which is like `old`; `x` is computed once, before it is stored.

    On a CPU, storing runs in a branch that is always taken, after the arrays in the
    tree `after`. So XLA does not compute `x` again for each pass over it. XLA also does
    not compute `x` together with the stored values, which would overwrite the old value
    while other code reads it.

    Small arrays are not worth a branch, except if two stored parts represent one
    number. Without a branch, XLA would compute the number for each part separately, and
    might fuse a product and a sum for only one of them. Then one part could come from a
    number that was rounded up and the other from a number that was rounded down.
    Together, they would represent neither.
    """
    is_debugging = jax.config.jax_disable_jit  # type: ignore  # added at run time
    if is_debugging or x.size < (1 if isinstance(old, Joined) else LARGE):
        return store(old, x)
    first = [y for y in jax.tree.leaves(after) if jnp.issubdtype(y.dtype, jnp.inexact)]

    def in_a_branch(old, x, first):
        is_never = _is_never.bind(first)
        return lax.cond(is_never, lambda old, x: old, store, old, x)

    plain = lambda old, x, first: store(old, x)
    first = lax.stop_gradient((first or [x])[-1])
    return lax.platform_dependent(old, x, first, cpu=in_a_branch, default=plain)


@no_type_check
def alone(
    run: Callable, first: Array | None, is_on_cpu: bool, packed: Array, *row: Any
) -> tuple:
    """`run(packed, *row)`, the kernel of a leaf.

    On a CPU, it is in a branch that is always taken. It starts after `first` has been
    computed, which is in a branch, too. XLA merges nothing with it, so its memory is
    free again when the next one starts. If `is_on_cpu`, this is only compiled for a
    CPU.
    """
    is_debugging = jax.config.jax_disable_jit  # type: ignore  # added at run time
    if is_debugging:
        return run(packed, *row)
    types, treedef = jax.tree.flatten(jax.eval_shape(run, packed, *row))
    nothing = _zeros(treedef, tuple(types))
    plain = lambda first, *arguments: run(*arguments)

    def in_a_branch(first, *arguments):
        return lax.cond(_is_never.bind(first), nothing, run, *arguments)

    arguments = lax.stop_gradient(packed if first is None else first), packed, *row
    if is_on_cpu:
        return in_a_branch(*arguments)
    return lax.platform_dependent(*arguments, cpu=in_a_branch, default=plain)


@functools.lru_cache  # equal leaves get the same function, so it is traced once
def _zeros(treedef: Any, types: tuple) -> Callable:
    # `full_like` keeps the axes of a mesh over which a value varies within `shard_map`.
    return lambda *_: treedef.unflatten(lax.full_like(x, 0) for x in types)


# False, but XLA does not know this: no number is less than minus infinity. For several
# devices, it is a constant, because reading one element requires communication.
_is_never = Primitive("is_never")
_is_never.def_impl(lambda x: jnp.zeros((), bool))
_is_never.def_abstract_eval(lambda x: ShapedArray((), bool))


def _compared(x: Array) -> Array:
    return x[(0,) * x.ndim].real < -jnp.inf


def _is_never_on_cpu(ctx: Any, x: Any) -> Any:
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    fn = _compared if devices == 1 else lambda x: jnp.zeros((), bool)
    [x_type] = ctx.avals_in
    types = [ShapedArray(x_type.shape, x_type.dtype)]
    return mlir.lower_fun(fn, multiple_results=False)(ctx.replace(avals_in=types), x)


batching.primitive_batchers[_is_never] = lambda arrays, axes: (
    _is_never.bind(arrays[0]),
    None,
)
ad.primitive_jvps[_is_never] = lambda primals, tangents: (
    _is_never.bind(*primals),
    ad.Zero(ShapedArray((), jax.dtypes.float0)),
)
mlir.register_lowering(_is_never, _is_never_on_cpu, platform="cpu")


# For leaves with fewer elements than `SMALL`, an order is not worth its tracing time
# (two thirds of the tracing time of a small model with Lion). For leaves with fewer
# elements than `LARGE`, taking turns is not worth its compilation time.
SMALL = 2**12
LARGE = 2**16


@no_type_check
def runs_alone(g: Any) -> bool:
    """Whether the kernel of matrices for the update `g` is a branch of its own."""
    return isinstance(g, Tracer) and g.size >= SMALL


@no_type_check
def takes_turn(kernel: Any, g: Any, *arguments: Any) -> bool:
    """Whether a leaf with the update `g` waits for the previous one.

    It waits if the compiled `kernel` contains a sum, for the given `arguments`: such a
    kernel has two passes over memory, and keeps the results of the first. It also waits
    if an array of the size of a leaf is `materialized`, or has another storage, because
    the computed values are kept in addition.
    """
    if g.size < LARGE or not isinstance(g, Tracer):
        return False
    if has_stored(arguments):
        return True
    return any(map(_keeps, equations(kernel.trace(*arguments).jaxpr)))


def _keeps(eqn: Any) -> bool:
    """Whether XLA keeps the result of an equation, or what the equation sums."""
    is_kept = eqn.primitive is _materialized
    return eqn.primitive.name.startswith(("reduce_", "dot_general")) or (
        is_kept and any(x.aval.size >= LARGE for x in eqn.invars)
    )
