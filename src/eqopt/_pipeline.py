"""Updates on their way through leafwise transformations.

Equations pile up until somebody needs the values. Then, leaf by leaf, one compiled kernel
runs all of them: neighbours in a chain are fused, and a model of a thousand leaves costs
a thousand calls, not a thousand for each transformation.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree, TypeCheckError

from ._checks import required_params
from ._equations import Equation, Operation, Result, ShapeMismatch, kernel, pack
from ._leaves import (
    align,
    check_wide,
    flatten_updates,
    is_function,
    is_none,
    keystr,
    map_parameters,
    mask_out,
    resolve_mask,
)
from ._misfits import misfit, no_parameter, stateless
from ._owners import name_of
from ._types import Mask, Params, State, Updates
from .numerics import common_dtype


class Leafwise(NamedTuple):
    """What a leafwise transformation does in one step: an equation and its arguments.

    **Attributes:**

    - `equation`: what [`eqopt.equation`][] made of a function of arrays.
    - `state`: the new state, but for the fields that the equation computes: these still
        hold their old values, and are found by the names of the equation's arguments.
    - `shared`: the equation's keyword-only arguments. Numbers and 0-d arrays are traced
        (integers as floats); bools, strings, functions and `None` are static.
    - `reads`: further trees like the parameters that the equation only reads, by the
        names of its arguments. (The parameters themselves are always there, as `p`.) In
        the place of a tree, a function that makes it from one like the updates, which
        has `jax.ShapeDtypeStruct`s for arrays: for random keys, say.
    - `mask`: as in [`eqopt.Masked`][]. Leaves that it leaves out pass unchanged.
    - `measure`: a function of the whole incoming updates that gives further `shared`
        values: a norm over all leaves, say. It ends the fusing with what came before.
    - `last`: fields of the state, shaped like the leaf, that are computed and stored
        after the result, one after the other. To be named where the result or another
        field needs their *old* value, or shares a quotient or a root with them: XLA on a
        CPU would make a temporary array of each. What is computed is the same.
    """

    equation: Equation
    state: State = None
    shared: Mapping[str, Any] = {}
    reads: Mapping[str, PyTree | Callable[[Updates], PyTree]] = {}
    mask: Mask | None = None
    measure: Callable[[Updates], Mapping[str, Any]] | None = None
    last: tuple[str, ...] = ()


class Pipeline:
    """The updates of one call of `update` or `step`, and the equations still to apply."""

    def __init__(
        self, updates: Updates, params: Params | None, extra: Mapping[str, Any]
    ):
        check_wide("updates", updates, jax.tree.leaves(updates, is_leaf=is_none))
        self.params = params
        self.extra = extra
        self._given = updates
        self._updates = updates
        self._pending: list[tuple[str, Leafwise]] = []
        self._states: list[State] = []
        self._last: list[tuple[list, str, Leafwise]] = []
        self._ended: Params | None = None

    def push(self, owner: str, leafwise: Leafwise) -> Callable[[], State]:
        """Adds an equation; what is returned gives the new state once it has run."""
        if leafwise.measure is not None:
            updates = self.flush()
            if leafwise.mask is not None:
                updates = mask_out(updates, leafwise.mask, self.params)
            shared = {**leafwise.shared, **leafwise.measure(updates)}
            leafwise = leafwise._replace(shared=shared)
        self._pending.append((name_of(owner), leafwise))
        index = len(self._states)
        self._states.append(None)
        return lambda: self._states[index]

    def push_last(self, owner: str, leafwise: Leafwise) -> Callable[[], State | None]:
        """Adds an equation to run behind all others, whoever pushes them.

        What is returned gives `None` if it did not run: somebody has added updates of
        his own making to the parameters, in a pipeline of his own. See `outcome` then.
        """
        ran = []
        self._last.append((ran, name_of(owner), leafwise))
        return lambda: ran[0]() if ran else None

    @property
    def outcome(self) -> tuple[Params | None, Updates | None]:
        """At the end: the new parameters and `None`, or the old ones and the updates."""
        if self._ended is not None:
            return self._ended, None
        return self.params, self.flush()

    @property
    def reads_params(self) -> bool:
        """Whether the updates to come depend on the parameters."""
        return any("p" in x.equation.leaves for _, x in self._pending)

    def replace(self, updates: Updates) -> None:
        """Goes on with other updates, once nothing is pending."""
        self._updates = updates

    def flush(self) -> Updates:
        """Runs the pending equations and gives the updates, as yet not rounded."""
        if self._pending:
            self._updates = self._run("updates")
        return self._updates

    def wide(self) -> Updates:
        """`flush`, in float32 at least: for a part that rounds what it returns."""
        return map_parameters(_wide, self.flush())

    def finish(self) -> Updates:
        """Runs all equations, also those pushed last, and gives the updates, rounded.

        They have the dtypes of those with which the pipeline began.
        """
        self._push_the_last()
        is_as_given = self._updates is self._given
        if self._pending:
            self._updates = self._run("rounded updates")
        if not is_as_given:
            self._updates = _as_given(self._updates, self._given)
        return self._updates

    def apply(self) -> Params:
        """Runs the pending equations and gives the updated parameters."""
        self._push_the_last()
        return self.end(self._run("params"))

    def end(self, params: Params) -> Params:
        """Takes note of the new parameters, in the making of which all this ended."""
        self._ended = params
        return params

    def _push_the_last(self) -> None:
        for ran, owner, leafwise in self._last:
            ran.append(self.push(owner, leafwise))
        self._last = []

    def _run(self, result_kind: Result) -> PyTree:
        result, states = _walk(self._updates, self.params, self._pending, result_kind)
        self._states[len(self._states) - len(states) :] = states
        self._pending = []
        return result


@no_type_check  # called once per leaf, like the next one
def _wide(u):
    return u.astype(common_dtype(u.dtype, jnp.float32)) if u.dtype.itemsize < 4 else u


@no_type_check
def _rounded(u, like):
    return u if u is None or u.dtype == like.dtype else u.astype(like.dtype)


def _as_given(updates: Updates, given: Updates) -> Updates:
    """In the dtypes of those given, if that is what they are: see `LookaheadParams`."""
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_none)
    likes, structure = jtu.tree_flatten(given, is_leaf=is_none)
    if treedef != structure:
        return updates
    return treedef.unflatten(map(_rounded, leaves, likes))


class _Stage(NamedTuple):
    """A `Leafwise`, with its trees laid out as columns beside the leaves of updates."""

    owner: str
    operation: Operation
    state: State
    columns: dict[str, list]
    packed: list
    loose: list
    flags: list[bool]


@no_type_check  # what is inside its loop would cost as much as the kernels it calls
def _walk(updates, params, pending, kind):
    """Runs `pending` on every leaf: the new updates or parameters, and the states."""
    leaves, treedef = flatten_updates(updates)
    trees = updates, params, leaves, treedef
    apply = kind == "params"
    stages = [_lay_out(*item, *trees) for item in pending]
    p = _column_of_params(updates, treedef, params, stages, apply)
    result = list(p if apply else leaves)
    # What a mask leaves out is not computed, so each pattern of masks has its own kernel.
    prepared = {}
    for i, g in enumerate(leaves):
        active = tuple([stage.flags[i] for stage in stages])
        if g is None or not (apply or any(active)):
            continue
        if active not in prepared:
            prepared[active] = _prepare(stages, active, kind)
        run, packed, takes_p, columns, slots, loose = prepared[active]
        # Once per leaf: the letter of the dtype tells what is no number with a fraction.
        if takes_p and getattr(getattr(p[i], "dtype", None), "kind", "O") in "biuO":
            raise no_parameter(keystr(updates, i), p[i])
        arguments = [p[i]] if takes_p else []
        arguments += [column[i] for column in columns]
        try:
            out = run(packed, g, *arguments, *loose)
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
        for column, new in zip(slots, out[1:], strict=True):
            column[i] = new
    states = [_store(stage, treedef) for stage in stages]
    return treedef.unflatten(result), states


@no_type_check
def _lay_out(owner, leafwise, updates, params, leaves, treedef):
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
    )
    if leafwise.mask is None:
        flags = [True] * len(leaves)
    else:
        flags = resolve_mask(leafwise.mask, updates, params)
    for name in operation.slots:
        # Where there is no update, parameter and state stay as they are.
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
    # Shapes alone: the values are not yet what the pending equations make of them.
    return tree(jax.tree.map(lambda g: jax.ShapeDtypeStruct(g.shape, g.dtype), updates))


def _as_scalar(owner: str, name: str, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: `{name}` has shape {np.shape(value)}, but a hyperparameter is a "
            "number or a 0-d array. For a population, build and use the optimizer under "
            "`eqx.filter_vmap`."
        )
    # A float keeps all of its digits, for float64 parameters. An equation is of real
    # numbers: that a hyperparameter was given as an integer is not its business.
    if isinstance(value, int | float):
        return np.asarray(value, float)
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    return jnp.asarray(value, float) if is_integer else value


@no_type_check
def _column_of_params(updates, treedef, params, stages, apply):
    readers = [s.owner for s in stages if "p" in s.operation.equation.leaves]
    if not (apply or readers):
        return [None] * treedef.num_leaves
    owner, *_ = [*readers, *(s.owner for s in stages), "`step`"]
    required_params(owner, params)
    column = align(treedef, params, "params", updates)
    check_wide("params", params, column)
    return column


@no_type_check
def _prepare(stages, active, kind):
    """The kernel for the stages that are on, and what to call it with."""
    chosen = [stage for stage, on in zip(stages, active, strict=True) if on]
    takes_p = kind == "params" or any(
        "p" in s.operation.equation.leaves for s in chosen
    )
    run = kernel(tuple(stage.operation for stage in chosen), takes_p, kind)
    columns = [column for stage in chosen for column in stage.columns.values()]
    slots = [s.columns[name] for s in chosen for name in s.operation.slots]
    packed = pack(tuple(value for stage in chosen for value in stage.packed))
    loose = [value for stage in chosen for value in stage.loose]
    return run, packed, takes_p, columns, slots, loose


def _store(stage: _Stage, treedef: Any) -> State:
    if not stage.operation.slots:
        return stage.state
    new = {s: treedef.unflatten(stage.columns[s]) for s in stage.operation.slots}
    return dataclasses.replace(stage.state, **new)
