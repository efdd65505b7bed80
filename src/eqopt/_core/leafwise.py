"""Maps equations over trees: `leafwise`, as `jax.tree.map` for the maths of one leaf.

An equation is a function of the arrays of one leaf. `leafwise` applies it to each leaf of
the updates, with the leaves of other trees at the same positions. It loads every array in
at least float32, computes, and stores each result like the array that it replaces. For
each equation and each choice of its static arguments, there is one jitted function, so
equal leaves are traced once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._arguments.extra import required_params
from .._errors import InputError
from .._platforms import store_in_two_passes
from .._trees.leaves import (
    align,
    briefly,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    listed,
)
from .._trees.masks import is_function, resolve_mask
from .._trees.precision import compute_dtype, widen
from .._trees.sharding import is_in_shard_map, sharded_like
from .._trees.stored import is_stored
from .._types import Mask, Params, PyTree, State, Updates
from .equation import MISFITS, Equation, ShapeMismatch, cached, equation, is_static
from .misfits import misfit, no_parameter, stateless


def leafwise(
    equation: Equation,
    updates: Updates,
    *slots: PyTree,
    reads: Mapping[str, PyTree | Callable[[Updates], PyTree]] | None = None,
    mask: Mask | None = None,
    **shared: Any,
) -> Any:
    """Applies an equation to each leaf of trees, as `jax.tree.map` applies a function.

    !!! example

        ```python
        @eqopt.equation(elementwise=True)
        def heavy_ball(g, trace, *, decay):
            trace = decay * trace + g
            return trace, trace


        updates, trace = eqopt.leafwise(heavy_ball, updates, trace, decay=0.9)
        ```

    **Arguments:**

    - `equation`: an [`eqopt.equation`][].
    - `updates`: a tree of inexact arrays, with `None` at every leaf that is not updated.
    - `slots`: trees with the structure of the parameters, for the positional arguments
        of the equation after the first one, in their order, without those in `reads`.
        Where `updates` is `None`, they stay unchanged.
    - `reads`: trees which the equation only reads, by argument name. Instead of a tree,
        you can pass a function, for example to make random keys. It gets the tree of
        updates, with `jax.ShapeDtypeStruct`s for arrays, and returns the tree.
    - `mask`: as in [`eqopt.Masked`][]. Leaves that it excludes stay unchanged.
    - `shared`: the keyword-only arguments of the equation. Numbers and 0-d arrays are
        traced (integers as floats); bools, strings, functions and `None` are static. An
        `eqx.Module` is passed as it is, if the argument is annotated with its class.

    **Returns:**

    The new updates, in the dtypes of `updates`; followed by the new slots, in their own
    dtypes, if there are any.

    **Raises:**

    A `ValueError` or `TypeError` that names the key path, if trees do not fit together.
    """
    reads = reads or {}
    names = [name for name in equation.leaves if name not in reads]
    if len(names) != len(slots):
        raise InputError(
            f"the equation `{equation.name}` takes the slots {listed(names)}, but "
            f"{len(slots)} trees were passed. Pass one tree for each."
        )
    named = dict(zip(names, slots, strict=True))
    step = Leafwise(equation, None, shared, reads, mask)
    params = {**reads, **named}.get("p")
    updates, new = _map(step, updates, named, params)
    return (updates, *new.values()) if slots else updates


class Leafwise(NamedTuple):
    """One step of a leafwise transformation: an equation and its arguments.

    **Attributes:**

    - `equation`: the result of [`eqopt.equation`][] for a function of arrays.
    - `state`: the new state. Fields with the name of an argument of the equation still
        hold their old values. The equation computes the new ones.
    - `shared`: the equation's keyword-only arguments. Missing ones are taken from the
        fields of the transformation with the same names. Numbers and 0-d arrays are
        traced (integers as floats); bools, strings, functions and `None` are static. An
        `eqx.Module` is passed as it is, if the argument is annotated with its class.
    - `reads`: other trees with the structure of the parameters, which the equation only
        reads, by argument name. (The parameters themselves are always available, as
        `p`.) Instead of a tree, you can pass a function, for example to make random
        keys. It gets the tree of updates, with `jax.ShapeDtypeStruct`s for arrays, and
        returns the tree.
    - `mask`: as in [`eqopt.Masked`][]. Leaves that it excludes pass unchanged.
    """

    equation: Equation
    state: State = None
    shared: Mapping[str, Any] = {}
    reads: Mapping[str, PyTree | Callable[[Updates], PyTree]] = {}
    mask: Mask | None = None


def run_leafwise(
    owner: Any, step: Leafwise, updates: Updates, params: Params | None
) -> tuple[Updates, State]:
    """The new updates and the new state of a leafwise transformation."""
    step = filled(owner, step)
    reads, slots = dict(step.reads), {}
    for name in step.equation.leaves:
        if name in reads:
            continue
        if name == "p":
            reads["p"] = required_params(params)
        else:
            slots[name] = getattr(step.state, name)
    updates, new = _map(step._replace(reads=reads), updates, slots, params)
    return updates, dataclasses.replace(step.state, **new) if new else step.state


def filled(owner: object, step: Leafwise) -> Leafwise:
    """`step` with missing shared values taken from the fields of `owner`."""
    if not isinstance(step, Leafwise) or not isinstance(step.equation, Equation):
        raise InputError(
            "`leafwise` and `matrixwise` must return an `eqopt.Leafwise` with an "
            f"`eqopt.equation`, but returned {briefly(step)}."
        )
    fields = vars(owner)
    own = {x: fields[x] for x in step.equation.shared if x in fields}
    return step._replace(shared={**own, **step.shared})


def _map(
    step: Leafwise, updates: Updates, slots: Mapping[str, PyTree], params: Params | None
) -> tuple[Updates, dict[str, PyTree]]:
    """The new updates and the new slots. `params` is for the mask."""
    equation = step.equation
    check_names(equation, step.reads, step.shared)
    leaves, treedef = flatten_updates(updates)
    columns = {}
    for name in equation.leaves:
        tree = slots[name] if name in slots else _read(step.reads[name], updates)
        label = "params" if name == "p" else name
        columns[name] = align(treedef, tree, label, updates)
    flags: Sequence[bool] = [True] * len(leaves)
    if step.mask is not None:
        flags = resolve_mask(step.mask, updates, params)
    rows = {
        i: (g, *[column[i] for column in columns.values()])
        for i, g in enumerate(leaves)
        if g is not None and flags[i]
    }
    for i, row in rows.items():
        for name, x in zip(columns, row[1:], strict=True):
            if name == "p" and not is_parameter(x):
                raise no_parameter(keystr(updates, i), x)
            if name in slots and x is None:
                raise stateless(name, keystr(updates, i))
    operation, values = bind(equation, tuple(slots), step.shared)

    def of_each(values, rows):
        return run_rows(kernel(operation), operation, updates, values, rows)

    outs = equation.of_rows(operation, of_each, values, rows)
    for i, (u, *new) in outs.items():
        leaves[i] = u
        for name, x in zip(slots, new, strict=True):
            columns[name][i] = x
    new_slots = {name: treedef.unflatten(columns[name]) for name in slots}
    return treedef.unflatten(leaves), new_slots


def check_names(
    equation: Equation, reads: Iterable[str], shared: Iterable[str]
) -> None:
    """Raises an error for a name that is no argument of the equation of this kind."""
    for names, known in (reads, equation.leaves), (shared, equation.shared):
        for name in names:
            if name not in known:
                raise InputError(f"`{equation.name}` has no argument `{name}`.")


def run_rows(
    run: Callable,
    operation: "Operation",
    updates: Updates,
    values: "Values",
    rows: Mapping[int, tuple],
) -> dict[int, tuple]:
    """`run(values, row)` for the arrays of each leaf. An error names its path."""
    outs = {}
    for i, row in rows.items():
        try:
            outs[i] = run(values, row)
        except MISFITS as error:
            names = ["params" if x == "p" else x for x in operation.equation.leaves]
            arrays = dict(zip(("updates", *names), row, strict=True))
            raise misfit(keystr(updates, i), arrays, error) from None
    return outs


def _read(tree: PyTree, updates: Updates) -> PyTree:
    if not is_function(tree):
        return tree
    # Inside `jax.shard_map`, types also say along which axes an array varies.
    if is_in_shard_map():
        return tree(jax.eval_shape(lambda updates: updates, updates))
    return tree(jax.tree.map(lambda g: jax.ShapeDtypeStruct(g.shape, g.dtype), updates))


#
# The arguments that all leaves share
#


class Operation(NamedTuple):
    """An equation with the static part of its arguments; hashable."""

    equation: Equation
    slots: tuple[str, ...]  # the positional names whose new values are stored
    packed: tuple[str, ...]  # shared floats, which are passed in one vector
    loose: tuple[str, ...]  # shared values of other types
    static: tuple[tuple[str, Any], ...]


# The shared floats in one vector, and the other shared values.
Values: TypeAlias = tuple[Array, list[Any]]


def bind(
    equation: Equation, slots: tuple[str, ...], given: Mapping[str, Any]
) -> tuple[Operation, Values]:
    """The operation, and the values that its leaves share."""
    static, packed, loose = {}, {}, {}
    for name in equation.shared:
        if name not in given:
            raise InputError(
                f"the equation `{equation.name}` needs `{name}`. Pass it by name, or "
                f"give the transformation a field `{name}`."
            )
        value = given[name]
        if name in equation.modules:
            loose[name] = value
            continue
        if is_static(value):
            static[name] = value
            continue
        value = _as_scalar(name, value)
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        (packed if is_float else loose)[name] = value
    names = tuple(packed), tuple(loose), tuple(static.items())
    values = _pack(tuple(packed.values())), [*loose.values()]
    return Operation(equation, slots, *names), values


def _as_scalar(name: str, value: Any) -> Any:
    # A float keeps all of its digits, for float64 parameters. Equations compute with
    # real numbers, so integer hyperparameters become floats.
    if isinstance(value, int | float):
        return np.asarray(value, float)
    if getattr(value, "shape", None) != ():
        raise InputError(
            f"`{name}` is {briefly(value)}, but an equation takes numbers and 0-d arrays "
            "after the `*`. Pass trees of arrays in `reads`, and use the optimizer of a "
            "population under `eqx.filter_vmap`."
        )
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    return jnp.asarray(value, float) if is_integer else value


@jax.jit
def _pack(values: tuple) -> Array:
    # Tracing and calling a function take time for each argument.
    dtype = jax.dtypes.canonicalize_dtype(float)
    return jnp.stack([jnp.asarray(x, dtype) for x in values] or [jnp.zeros((), dtype)])


#
# One leaf: load, compute, store
#


@cached
def kernel(operation: Operation) -> Callable:
    """The jitted function of one leaf; it returns the update and the new slots."""
    equation = operation.equation

    def compute(values, row, store):
        arguments, shared = load_row(operation, values, row)
        out = equation(*arguments, **shared)
        return store_row(operation, row, arguments, out, store)

    def run(values, row):
        with jax.numpy_dtype_promotion("standard"):
            if equation.elementwise and any(map(is_stored, row)):
                return store_in_two_passes(compute, values, row, stored_like)
            return compute(values, row, stored_like)

    # The profiler shows this name.
    run.__name__ = run.__qualname__ = equation.name
    return jax.jit(run)


def _check_shapes(equation: Equation, row: Sequence[Any]) -> None:
    """Raises an error for arrays that would be broadcast to others."""
    g, *others = row
    for name, x in zip(equation.leaves, others, strict=True):
        if equation.elementwise or name == "p":
            shape = getattr(x, "shape", g.shape)
            is_number = shape == () and name != "p"
            if shape != g.shape and not is_number:
                raise ShapeMismatch(f"`{name}` has another shape than the update")


def load_row(
    operation: Operation, values: Values, row: Sequence[Any]
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of the equation, all in one precision."""
    _check_shapes(operation.equation, row)
    real, (packed, loose) = compute_dtype(*row), values
    shared = dict(zip(operation.packed, jnp.unstack(packed.astype(real)), strict=False))
    shared |= zip(operation.loose, [widen(x, real) for x in loose], strict=True)
    shared |= operation.static
    return tuple([widen(x, real) for x in row]), shared


def store_row(
    operation: Operation,
    row: Sequence[Any],
    arguments: Sequence[Any],
    out: Any,
    store: Callable,
) -> tuple:
    """What an equation returned for a row, stored like the arrays in it."""
    u, *new = out if isinstance(out, tuple) else (out,)
    equation = operation.equation
    places = [1 + equation.leaves.index(name) for name in operation.slots]
    old = [row[k] for k in places]
    _check_outputs(operation, u, arguments[0] if equation.keeps_shape else u, new, old)
    if equation.is_divided:
        there = arguments[0], [arguments[k] for k in places]  # back to where they were
        u, new = jax.tree.map(sharded_like, there, (u, new))
    slots = [jax.tree.map(store, *pair) for pair in zip(new, old, strict=True)]
    return stored_like(u, row[0]), *slots


def stored_like(new: Array, slot: Any) -> Any:
    """`new`, stored like `slot`."""
    if jnp.iscomplexobj(new) and not jnp.issubdtype(slot.dtype, jnp.complexfloating):
        raise ShapeMismatch("a complex value for a real slot")
    if is_stored(slot):
        return slot.store(new if slot._is_differentiable else lax.stop_gradient(new))
    new = new.astype(slot.dtype)
    if not getattr(slot, "weak_type", False):
        return new
    # A parameter such as `jnp.array(1.0)` stays so, or the second step compiles again.
    # JAX makes only scalars weakly typed.
    weakly = jnp.full_like
    for _ in range(new.ndim):
        weakly = jax.vmap(weakly)
    return weakly(slot, new)


def _check_outputs(
    operation: Operation, u: Any, before: Any, new: Sequence[Any], old: Sequence[Any]
) -> None:
    name = operation.equation.name
    if len(new) != len(old):
        raise InputError(
            f"the equation `{name}` must return the update and the new "
            f"{operation.slots}, but returned {1 + len(new)} values. A tree that it only "
            "reads belongs in `reads`."
        )
    for x, like in zip((u, *new), (before, *old), strict=True):
        if isinstance(x, jax.Array) and x.shape == getattr(like, "shape", None):
            continue
        shape_of = lambda y: y.shape
        found, expected = jax.tree.map(shape_of, (x, like), is_leaf=is_stored)
        if found != expected:
            raise InputError(
                f"the equation `{name}` turned {expected} into {found}, but must return "
                "the update and the new slots in the shapes of the old ones."
            )


#
# The last equation of a step, and the precision of trees
#


@equation(elementwise=True)
def add(g, p):
    return g, p + g


def add_updates(params: Params, updates: Updates) -> Params:
    """Adds `updates` to `params`; the sum is rounded once, to the dtype of `params`."""
    _, params = leafwise(add, updates, params)
    return params


def widened(updates: Updates) -> Updates:
    """`updates` in at least float32, for transformations that follow each other."""
    dtypes = {getattr(x, "dtype", None) for x in jax.tree.leaves(updates)}
    if not dtypes & _HALF:
        return updates
    widen_one = lambda u: u.astype(jnp.float32) if u.dtype in _HALF else u
    return jax.tree.map(widen_one, updates)


_HALF = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}


def rounded_like(updates: Updates, given: Updates) -> Updates:
    """`updates` in the dtypes of `given`, if both have the same structure.

    They have different structures for `LookaheadParams`.
    """
    leaves, treedef = jax.tree.flatten(updates, is_leaf=is_leaf)
    likes, structure = jax.tree.flatten(given, is_leaf=is_leaf)
    if treedef != structure:
        return updates

    def rounded(u, like):
        dtype = None if like is None else jax.dtypes.canonicalize_dtype(like.dtype)
        return u if u is None or dtype in (None, u.dtype) else u.astype(dtype)

    return treedef.unflatten(map(rounded, leaves, likes))
