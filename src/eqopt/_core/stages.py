"""Aligns the arguments of equations with the leaves, and runs a kernel for each leaf."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._arguments.extra import required_params
from .._jax_internals import is_traced
from .._trees.leaves import align, briefly, flatten_updates, is_leaf, keystr, listed
from .._trees.masks import is_function, resolve_mask
from .._trees.sharding import is_in_shard_map
from .._types import Params, State, Updates
from .equation import equation_of
from .kernel import Operation, Result, kernel, pack
from .misfits import no_matrix, no_parameter, stateless
from .run import LeafKernel, Stage, run_leaf, run_matrices


def walk(
    updates: Updates,
    params: Params | None,
    pending: Sequence[tuple[str, Any]],
    kind: Result,
    not_applied: Sequence[bool] | None = None,
) -> tuple[PyTree, list[State]]:
    """Runs `pending` on each leaf. Returns new updates or parameters, and the states.

    For leaves where `not_applied` is true, it returns updates, not parameters.
    """
    leaves, treedef = flatten_updates(updates)
    trees = updates, params, leaves, treedef
    flags = not_applied or [False] * len(leaves)
    kinds: list[Result] = ["updates" if flag else kind for flag in flags]
    stages = [_lay_out(owner, leafwise, *trees) for owner, leafwise in pending]
    p = _column_of_params(updates, treedef, params, stages, kind == "params")
    pairs = zip(kinds, p, leaves, strict=True)
    result = [x if kind == "params" else g for kind, x, g in pairs]
    # Equations skip leaves that their masks exclude, so each pattern has its own
    # kernel.
    kernels, matrices, previous = {}, {}, None

    def put(kernel, i, out):
        result[i] = out[0]
        for column, new in zip(kernel.slots, out[1:], strict=True):
            column[i] = new

    for i, g in enumerate(leaves):
        active = tuple([stage.flags[i] for stage in stages])
        if g is None or not (kinds[i] == "params" or any(active)):
            continue
        pattern = active, kinds[i]
        if pattern not in kernels:
            kernels[pattern] = _prepare(stages, *pattern)
        kernel = kernels[pattern]
        # This runs once per leaf. The kind of the dtype is a fast check for integers.
        if kernel.takes_p and (
            getattr(getattr(p[i], "dtype", None), "kind", "O") in "biuO"
            or p[i].dtype.itemsize < 2
        ):
            raise no_parameter(keystr(updates, i), p[i])
        row = [g, p[i]] if kernel.takes_p else [g]
        row += [column[i] for column in kernel.columns]
        row += kernel.loose
        if kernel.is_of_matrices and is_traced(g):
            matrices.setdefault(pattern, {})[i] = row
        else:
            out, previous = run_leaf(kernel, updates, i, row, previous)
            put(kernel, i, out)
    for pattern, rows in matrices.items():
        outs, previous = run_matrices(kernels[pattern], updates, rows, previous)
        for i, out in zip(rows, outs, strict=True):
            put(kernels[pattern], i, out)
    states = [_store(stage, treedef) for stage in stages]
    return treedef.unflatten(result), states


def _lay_out(
    owner: str,
    leafwise: Any,  # a `Leafwise`; its module, one floor up, imports this one
    updates: Updates,
    params: Params | None,
    leaves: list,
    treedef: Any,
) -> Stage:
    equation = leafwise.equation
    columns = {}
    for name in equation.leaves:
        if name == "p" and name not in leafwise.reads:
            continue
        if name in leafwise.reads:
            tree = _tree_to_read(leafwise.reads[name], updates)
            columns[name] = align(treedef, tree, name, updates)
        elif hasattr(leafwise.state, name):
            tree = getattr(leafwise.state, name)
            columns[name] = align(treedef, tree, f"state.{name}", updates)
        else:
            raise TypeError(
                f"{owner}: the equation `{equation.name}` takes `{name}`, which is not a "
                f"field of its state, {type(leafwise.state).__name__}. Fields: "
                f"{listed([*getattr(leafwise.state, '__dict__', ())]) or 'none'}."
            )
    static, packed, loose = {}, {}, {}
    for name in equation.shared:
        if name not in leafwise.shared:
            raise TypeError(
                f"{owner}: the equation `{equation.name}` needs `{name}`. Pass it in "
                f"`shared`, or give {owner} a field `{name}`."
            )
        value = leafwise.shared[name]
        if any(
            x is not value and eqx.is_inexact_array(x) for x in jax.tree.leaves(value)
        ):
            raise TypeError(
                f"{owner}: `{name}` is {briefly(value)}, but the equation "
                f"`{equation.name}` takes single numbers after the `*`. Pass a tree like "
                "the parameters in `reads`; `p` is the parameters themselves."
            )
        if value is None or isinstance(value, bool | str) or callable(value):
            static[name] = value
            continue
        value = _as_scalar(owner, name, value)
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        (packed if is_float else loose)[name] = value
    slots = tuple(name for name in columns if name not in leafwise.reads)
    for name in (*leafwise.first, *leafwise.last):
        if name not in slots:
            raise ValueError(
                f"{owner}: `first` and `last` name slots of the equation "
                f"`{equation.name}`, which has {listed([*slots])}, but one is {name!r}."
            )
    operation = Operation(
        equation,
        slots,
        tuple(packed),
        tuple(loose),
        tuple(static.items()),
        leafwise.first,
        leafwise.last,
        None if leafwise.on_cpu is None else equation_of(leafwise.on_cpu),
        "p" in columns,
    )
    if leafwise.mask is None:
        flags = [True] * len(leaves)
    else:
        flags = resolve_mask(leafwise.mask, updates, params)
    for name in operation.slots:
        # Without an update, the parameter and its state stay unchanged.
        for i, (flag, g, x) in enumerate(
            zip(flags, leaves, columns[name], strict=True)
        ):
            if flag and g is not None and x is None:
                raise stateless(owner, name, keystr(updates, i))
            if not flag and g is not None and x is not None and equation.is_of_matrices:
                raise no_matrix(owner, name, keystr(updates, i))
    values = [*packed.values()], [*loose.values()]
    return Stage(owner, operation, leafwise.state, columns, *values, flags)


def laid_out(leafwise: Any, updates: Updates) -> Any:
    """`leafwise` with trees instead of functions that compute them from `updates`."""
    reads = {k: _tree_to_read(x, updates) for k, x in leafwise.reads.items()}
    if leafwise.mask is None:
        return leafwise._replace(reads=reads)
    mask = resolve_mask(leafwise.mask, updates, None)
    treedef = jax.tree.structure(updates, is_leaf=is_leaf)
    return leafwise._replace(reads=reads, mask=treedef.unflatten(mask))


def _tree_to_read(tree: PyTree, updates: Updates) -> PyTree:
    if not is_function(tree):
        return tree
    # It gets only shapes, because the pending equations will change the values. Inside
    # `jax.shard_map`, the types also say along which axes an array varies.
    if is_in_shard_map():
        return tree(jax.eval_shape(lambda updates: updates, updates))
    return tree(jax.tree.map(lambda g: jax.ShapeDtypeStruct(g.shape, g.dtype), updates))


def _as_scalar(owner: str, name: str, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: `{name}` has shape {np.shape(value)}, but a hyperparameter must "
            "be a number or a 0-d array. For a population, build and use the optimizer "
            "under `eqx.filter_vmap`."
        )
    # A float keeps all of its digits, for float64 parameters. Equations compute with
    # real numbers, so integer hyperparameters become floats.
    if isinstance(value, int | float):
        return np.asarray(value, float)
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    return jnp.asarray(value, float) if is_integer else value


def _column_of_params(
    updates: Updates,
    treedef: Any,
    params: Params | None,
    stages: list[Stage],
    apply: bool,
) -> list:
    readers = [s.owner for s in stages if s.operation.reads_params]
    if not (apply or readers):
        return [None] * treedef.num_leaves
    owner, *_ = [*readers, *(s.owner for s in stages), "`step`"]
    required_params(owner, params)
    return align(treedef, params, "params", updates)


def _prepare(stages: list[Stage], active: tuple[bool, ...], kind: Result) -> LeafKernel:
    """The kernel for the active stages, and its arguments."""
    chosen = [stage for stage, on in zip(stages, active, strict=True) if on]
    takes_p = kind == "params" or any(s.operation.reads_params for s in chosen)
    operations = [stage.operation for stage in chosen]
    program = tuple(operations), takes_p, kind
    run = kernel(*program)
    is_of_matrices = any(op.equation.is_of_matrices for op in operations)
    packed = pack(tuple(value for stage in chosen for value in stage.packed))
    return LeafKernel(
        run=run,
        program=program,
        packed=packed,
        loose=[value for stage in chosen for value in stage.loose],
        takes_p=takes_p,
        columns=[column for stage in chosen for column in stage.columns.values()],
        slots=[s.columns[name] for s in chosen for name in s.operation.slots],
        stages=chosen,
        is_of_matrices=is_of_matrices,
    )


def _store(stage: Stage, treedef: Any) -> State:
    if not stage.operation.slots:
        return stage.state
    new = {s: treedef.unflatten(stage.columns[s]) for s in stage.operation.slots}
    return dataclasses.replace(stage.state, **new)
