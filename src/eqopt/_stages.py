"""Runs equations over the leaves, one kernel for each, and reports misfits."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, TypeCheckError

from ._checks import required_params
from ._cpu.order import after, loaded_after, takes_turn
from ._equations import Operation, Result, ShapeMismatch, equation_of, kernel, pack
from ._leaves import (
    align,
    flatten_updates,
    is_function,
    keystr,
    resolve_mask,
)
from ._misfits import misfit, no_parameter, stateless
from ._storage import has_stored
from ._typecheck import no_type_check
from ._types import Params, State, Updates


class _Stage(NamedTuple):
    """A `Leafwise` with its trees as columns, aligned with the leaves of the updates."""

    owner: str
    operation: Operation
    state: State
    columns: dict[str, list]
    packed: list
    loose: list
    flags: list[bool]


@no_type_check  # what is inside its loop would cost as much as the kernels it calls
def walk(
    updates: Updates,
    params: Params | None,
    pending: Sequence[tuple[str, Any]],
    kind: Result,
) -> tuple[PyTree, list[State]]:
    """Runs `pending` on every leaf: the new updates or parameters, and the states."""
    leaves, treedef = flatten_updates(updates)
    trees = updates, params, leaves, treedef
    apply = kind == "params"
    stages = [_lay_out(owner, leafwise, *trees) for owner, leafwise in pending]
    p = _column_of_params(updates, treedef, params, stages, apply)
    result = list(p if apply else leaves)
    # Masked leaves are not computed, so each pattern of masks has its own kernel.
    prepared, previous = {}, None
    for i, g in enumerate(leaves):
        active = tuple([stage.flags[i] for stage in stages])
        if g is None or not (apply or any(active)):
            continue
        if active not in prepared:
            prepared[active] = _prepare(stages, active, kind)
        run, packed, takes_p, columns, slots, loose, has_products = prepared[active]
        # Once per leaf: the kind character of the dtype shows whether numbers have
        # fractions.
        if takes_p and (
            getattr(getattr(p[i], "dtype", None), "kind", "O") in "biuO"
            or p[i].dtype.itemsize < 2
        ):
            raise no_parameter(keystr(updates, i), p[i])
        arguments = [p[i]] if takes_p else []
        arguments += [column[i] for column in columns]
        arguments += loose
        try:
            has_turn = takes_turn(run, g, packed, g, *arguments)
            if has_turn and previous is not None:
                waiting = [loaded_after(previous, x) for x in arguments]
                out = run(after(previous, packed), g, *waiting)
            else:
                out = run(packed, g, *arguments)
        except (ShapeMismatch, TypeCheckError) as error:
            chosen = [stage for stage, on in zip(stages, active, strict=True) if on]
            named = {"updates": g} | ({"params": p[i]} if takes_p else {})
            for stage in chosen:
                named |= {f"state.{k}": c[i] for k, c in stage.columns.items()}
            owners = [stage.owner for stage in chosen]
            operations = [stage.operation for stage in chosen]
            path = keystr(updates, i)
            raise misfit(owners, operations, loose, path, named) from error
        result[i] = out[0]
        previous = _last_computed(out, has_products) if has_turn else previous
        for column, new in zip(slots, out[1:], strict=True):
            column[i] = new
    states = [_store(stage, treedef) for stage in stages]
    return treedef.unflatten(result), states


@no_type_check
def _last_computed(out: tuple, has_products: bool) -> Any:
    """The last computation in the kernel of a leaf: storing follows the result.

    So do the slots of matrices, which are products.
    """
    if not (has_products or has_stored(out)):
        return out[0]
    floats = [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return floats[-1]


@no_type_check
def _lay_out(
    owner: str,
    leafwise: Any,  # a `Leafwise`, which is on the floor above
    updates: Updates,
    params: Params | None,
    leaves: list,
    treedef: Any,
) -> _Stage:
    equation = leafwise.equation
    columns = {}
    for name in equation.leaves:
        if name == "p":
            continue
        if name in leafwise.reads:
            tree = _tree_to_read(leafwise.reads[name], updates)
            columns[name] = align(treedef, tree, name, updates)
        elif hasattr(leafwise.state, name):
            tree = getattr(leafwise.state, name)
            columns[name] = align(treedef, tree, f"state.{name}", updates)
        else:
            raise TypeError(
                f"{owner}: the equation `{equation.name}` takes `{name}`, which is no "
                f"field of its state, {type(leafwise.state).__name__}."
            )
    static, packed, loose = {}, {}, {}
    for name in equation.shared:
        if name not in leafwise.shared:
            raise TypeError(f"{owner}: the equation `{equation.name}` needs `{name}`.")
        value = leafwise.shared[name]
        if value is None or isinstance(value, bool | str) or callable(value):
            static[name] = value
            continue
        value = _as_scalar(owner, name, value)
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        (packed if is_float else loose)[name] = value
    operation = Operation(
        equation,
        tuple(name for name in columns if name not in leafwise.reads),
        tuple(packed),
        tuple(loose),
        tuple(static.items()),
        leafwise.last,
        None if leafwise.on_cpu is None else equation_of(leafwise.on_cpu),
    )
    if leafwise.mask is None:
        flags = [True] * len(leaves)
    else:
        flags = resolve_mask(leafwise.mask, updates, params)
    for name in operation.slots:
        # Where there is no update, parameter and state stay unchanged.
        for i, (flag, g, x) in enumerate(
            zip(flags, leaves, columns[name], strict=True)
        ):
            if flag and g is not None and x is None:
                raise stateless(owner, name, keystr(updates, i))
    values = [*packed.values()], [*loose.values()]
    return _Stage(owner, operation, leafwise.state, columns, *values, flags)


def _tree_to_read(tree: PyTree, updates: Updates) -> PyTree:
    if not is_function(tree):
        return tree
    # Only shapes: the values are not yet the results of the pending equations.
    return tree(jax.tree.map(lambda g: jax.ShapeDtypeStruct(g.shape, g.dtype), updates))


@no_type_check
def _as_scalar(owner: str, name: str, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: `{name}` has shape {np.shape(value)}, but a hyperparameter is a "
            "number or a 0-d array. For a population, build and use the optimizer under "
            "`eqx.filter_vmap`."
        )
    # A float keeps all of its digits, for float64 parameters. An equation is of real
    # numbers: it does not matter that a hyperparameter was given as an integer.
    if isinstance(value, int | float):
        return np.asarray(value, float)
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    return jnp.asarray(value, float) if is_integer else value


@no_type_check
def _column_of_params(
    updates: Updates,
    treedef: Any,
    params: Params | None,
    stages: list[_Stage],
    apply: bool,
) -> list:
    readers = [s.owner for s in stages if "p" in s.operation.equation.leaves]
    if not (apply or readers):
        return [None] * treedef.num_leaves
    owner, *_ = [*readers, *(s.owner for s in stages), "`step`"]
    required_params(owner, params)
    return align(treedef, params, "params", updates)


@no_type_check
def _prepare(
    stages: list[_Stage], active: tuple[bool, ...], kind: Result
) -> tuple[Callable, Any, bool, list[list], list[list], list, bool]:
    """The kernel for the active stages, and the arguments to call it with."""
    chosen = [stage for stage, on in zip(stages, active, strict=True) if on]
    takes_p = kind == "params" or any(
        "p" in s.operation.equation.leaves for s in chosen
    )
    run = kernel(tuple(stage.operation for stage in chosen), takes_p, kind)
    columns = [column for stage in chosen for column in stage.columns.values()]
    slots = [s.columns[name] for s in chosen for name in s.operation.slots]
    packed = pack(tuple(value for stage in chosen for value in stage.packed))
    loose = [value for stage in chosen for value in stage.loose]
    operations = [stage.operation for stage in chosen]
    has_products = any(op.equation.is_of_matrices and op.slots for op in operations)
    return run, packed, takes_p, columns, slots, loose, has_products


@no_type_check
def _store(stage: _Stage, treedef: Any) -> State:
    if not stage.operation.slots:
        return stage.state
    new = {s: treedef.unflatten(stage.columns[s]) for s in stage.operation.slots}
    return dataclasses.replace(stage.state, **new)
