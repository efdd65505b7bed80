"""Continues a training run of torch: its entries for each parameter as a state."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._core import AbstractTransformation
from ..._errors import InputError
from ..._trees.leaves import listed
from ..._types import IntegerLike, Mask, Params, State
from ..._wrappers.averages.param_averages import SWA
from ..._wrappers.scheduled import Scheduled
from .._parts import (
    checked_count,
    instances_of,
    learning_rates,
    map_nodes,
    nodes_of,
    with_rate,
)
from ._places import Places, array_of, fitted, given_in, number, places


def state_from_torch(
    opt: AbstractTransformation,
    state_dict: Mapping[str, Any],
    params: Params,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
    count: IntegerLike | None = None,
) -> State:
    """The state with which `opt` continues a training run that torch started.

    !!! example

        ```python
        from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

        model = params_from_torch(network.parameters(), model)
        opt = from_torch(optimizer)
        state = state_from_torch(opt, optimizer.state_dict(), model)
        model, state = opt.step(grads, state, model)
        ```

    The next steps equal torch's up to rounding, if `opt` is the result of
    [`eqopt.interop.torch.from_torch`][] for the optimizer, or an equivalent optimizer
    of your own, such as `eqopt.AdamW(schedule, weight_decay=0.01)`. It may be in a
    chain, a mask, a group or an [`eqopt.Scheduled`][]: each array of torch replaces the
    array of the same kind for the same parameter. Arrays are copied.

    !!! warning

        A state does not identify its optimizer completely. In torch, Adam, AdamW and
        RAdam have states of the same kind, so confusing them raises no error. The
        hyperparameters in `state_dict` are ignored: `opt` has its own.

    **Arguments:**

    - `opt`: the optimizer.
    - `state_dict`: the result of `optimizer.state_dict()` of torch, or the same with
        NumPy arrays instead of tensors.
    - `params`: the model.
    - `paths`, `transpose`: how torch's parameters correspond to the parameters of the
        model, as in [`eqopt.interop.torch.params_from_torch`][], in the order of
        `state_dict["param_groups"]`. Shapes are read from the state.
    - `count`: the number of steps taken so far, an integer of at least 0. Defaults to
        torch's count. SGD and Muon in torch do not count steps: for them, `count` is
        required if `opt` has a schedule, and defaults to 0 otherwise.

    **Returns:**

    The state, as if `opt` had trained from the first step. If torch has no state yet,
    because no step was taken, this is `opt.init(params)`.

    **Raises:**

    A `ValueError` that names key paths if `state_dict` is the state of another
    optimizer or model, if arrays have other shapes, or more digits than the state of
    `opt`, if torch counted different numbers of steps in one group, if a count is
    needed and torch has none, and in the same cases as for
    [`eqopt.interop.torch.params_from_torch`][].
    """
    groups = state_dict["param_groups"]
    entries = {
        key: {name: array_of(x) for name, x in entry.items() if x is not None}
        for key, entry in state_dict["state"].items()
    }
    entries = {key: entry for key, entry in entries.items() if entry}
    given = given_in(groups, lambda key: _shape_of(entries.get(key, {})))
    where = places("state_from_torch", given, params, paths, transpose)
    template = opt.init(params)
    converter = Converter(opt, template, where, entries, groups, count)
    is_new = not converter.needs_count if count is None else count == 0
    if not entries and is_new:
        return template
    return converter.converted()


_OWNER = "state_from_torch"
_OTHER = "Was it made by another optimizer, or with other options?"
_FREEZE = (
    "If it is not trained there, freeze it: `from_torch(optimizer, model, paths=...)`, "
    "with `None` for it."
)
_ADAM = {"mu": "exp_avg", "nu": "exp_avg_sq"}

# The fields of states that have an array for each parameter, by its name in torch.
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "AddDecayedWeightsState": {},
    "SWAState": {"average": "ax"},
    "ScaleByAMSGradState": {**_ADAM, "nu_max": "max_exp_avg_sq"},
    "ScaleByAdadeltaState": {"e_g": "square_avg", "e_x": "acc_delta"},
    "ScaleByAdamState": _ADAM,
    "ScaleByAdamaxState": {"mu": "exp_avg", "nu": "exp_inf"},
    "ScaleByFactoredRMSState": {
        "v_row": "row_var",
        "v_col": "col_var",
        "v": "variance",
    },
    "ScaleByLearningRateState": {},
    "ScaleByRAdamState": _ADAM,
    "ScaleByRMSState": {"nu": "square_avg"},
    "ScaleByRSSState": {"sum_of_squares": "sum"},
    "ScaleByRpropState": {"step_sizes": "step_size", "prev_updates": "prev"},
    "ScaleByScheduleState": {},
    "ScaleByStddevState": {"mu": "grad_avg", "nu": "square_avg"},
    "ScheduledState": {},
    "TraceState": {"trace": "momentum_buffer"},
}

# The entries of torch for a parameter that do not have its shape.
_SCALARS = {"step", "mu_product", "eta", "mu"}


def _shape_of(entry: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the parameter that torch's `entry` is for, if the entry has it."""
    if "row_var" in entry:
        return (*entry["row_var"].shape[:-1], entry["col_var"].shape[-1])
    shapes = [x.shape for key, x in entry.items() if key not in _SCALARS]
    return tuple(shapes[0]) if shapes else None


def _is_known(node):
    return isinstance(node, eqx.Module) and type(node).__name__ in _FIELDS


class Converter:
    """The arguments of `state_from_torch`, and the entries that have been used."""

    def __init__(
        self,
        opt: AbstractTransformation,
        template: Any,
        where: Places,
        entries: Mapping[Any, Mapping[str, np.ndarray]],
        groups: Sequence[Mapping[str, Any]],
        count: IntegerLike | None,
    ):
        self.opt, self.where, self.entries, self.groups = opt, where, entries, groups
        self.template = template
        self.nodes = [x for x in nodes_of(template, _is_known) if _is_known(x[1])]
        self.count = None if count is None else checked_count(count)
        self.used: set[tuple[str, str]] = set()

    @functools.cached_property
    def needs_count(self) -> bool:
        """Whether numbers depend on a count that torch's state may not have."""
        scheduled = {"ScaleByScheduleState", "ScheduledState", "SWAState"}
        decays = {"AddDecayedWeightsState"}  # these count only if there is a schedule
        return any(callable(x.learning_rate) for x in learning_rates(self.opt)) or any(
            type(node).__name__ in scheduled
            or (type(node).__name__ in decays and node.count is not None)
            for _, node in self.nodes
        )

    def converted(self) -> Any:
        self.rates = learning_rates(self.opt)
        self.scheduled = instances_of(self.opt, Scheduled)
        self.averages = instances_of(self.opt, SWA)
        new = map_nodes(self._node, self.template, _is_known)
        self._check_all_used()
        return new

    def _node(self, path: tuple, node: Any) -> Any:
        if not _is_known(node) or getattr(node, "hyperparams_states", None):
            raise InputError(
                _OWNER,
                f"the state of `opt` has a part at `{jtu.keystr(path)}` that has no "
                "counterpart in torch. Use an optimizer as `from_torch` returns it.",
            )
        name = type(node).__name__
        new = {field: self._field(node, field, path) for field in _FIELDS[name]}
        if getattr(node, "count", None) is not None:
            # Two counts of a state must not share a buffer, which would be donated
            # twice.
            new["count"] = jnp.array(self._count(path))
        if name == "ScheduledState":
            last = jnp.maximum(new["count"] - 1, 0)
            values = next(self.scheduled)._values(last, {}, {})
            new["hyperparams"] = {
                name: jnp.array(x, jnp.float32) for name, x in values.items()
            }
        if name == "SWAState":
            swa = next(self.averages)
            n = (new["count"] - swa.start) // swa.period + 1
            new["n_averaged"] = jnp.maximum(n, 0).astype(jnp.int32)
        node = dataclasses.replace(node, **new)
        if name == "ScaleByLearningRateState":
            node = with_rate(node, next(self.rates, None))
        return node

    def _field(self, node: Any, field: str, path: tuple) -> Any:
        kind, place = type(node).__name__, f"{jtu.keystr(path)}.{field}"

        def leaf(path_of_leaf: tuple, x: Array) -> Array:
            name = jtu.keystr(path_of_leaf)
            take = lambda key, x: self._taken(kind, name, key, x, place)
            if kind == "ScaleByFactoredRMSState":
                return self._statistics(node, field, name, take, x)
            value = take(_FIELDS[kind][field], x)
            if kind == "ScaleByRpropState" and field == "prev_updates":
                return jnp.sign(value) * take("step_size", x)
            if kind == "TraceState" and self._follows_rate(path):
                rate = number(self.groups[self.where.given[name].group]["lr"])
                return -jnp.asarray(rate, value.dtype) * value
            return value

        return jtu.tree_map_with_path(leaf, getattr(node, field))

    def _taken(self, kind: str, name: str, key: str, x: Any, place: str) -> Array:
        entry = self._entry(name)
        if key not in entry:
            fix = _OTHER if entry else _FREEZE
            raise InputError(
                _OWNER,
                f"the {kind} of `opt` needs `{key}` for `{name}`, but torch's state has "
                f"{listed(sorted(entry)) or 'nothing'} for it. {fix}",
            )
        self.used.add((name, key))
        what = f"The state at `{place}{name}`, `{key}` of torch,"
        return fitted(entry[key], x, what, name in self.where.transposed)

    def _entry(self, name: str) -> Mapping[str, np.ndarray]:
        """What torch has for the parameter at this key path."""
        given = self.where.given.get(name)
        return {} if given is None else self.entries.get(given.key, {})

    def _statistics(
        self,
        node: Any,
        field: str,
        name: str,
        take: Callable[[str, Any], Array],
        x: Array,
    ) -> Array:
        """Adafactor's statistics, whose rows and columns may be swapped."""
        entry = self._entry(name)
        theirs = [entry[key].size for key in ("row_var", "col_var") if key in entry]
        if not theirs and field == "v":
            return take("variance", x)
        if not theirs:
            # A vector in torch is a matrix here, with an axis of length 1.
            shape = getattr(entry.get("variance"), "shape", ())
            whole = take("variance", jax.ShapeDtypeStruct(shape, x.dtype))
            return (jnp.mean(whole) if x.size == 1 else whole).reshape(x.shape)
        sizes = [
            y.size
            for tree in (node.v_row, node.v_col)
            for path, y in jtu.tree_leaves_with_path(tree)
            if jtu.keystr(path) == name
        ]
        if sorted(sizes) != sorted(theirs):
            raise InputError(
                _OWNER,
                f"torch factors the last two axes of `{name}`, but `opt` does not. Pass "
                "`weight_dimension_numbers=eqopt.MatrixDimensionNumbers(-2, -1)` to it.",
            )
        is_square = sizes[0] == sizes[1]
        turned = name in self.where.transposed if is_square else sizes != theirs
        return take("row_var" if (field == "v_row") != turned else "col_var", x)

    def _follows_rate(self, path: tuple) -> bool:
        """Whether a learning rate precedes the part of a chain with this state."""
        if not path or not isinstance(path[-1], jtu.SequenceKey):
            return False
        return any(
            other[:-1] == path[:-1] and other[-1].idx < path[-1].idx
            for other, node in self.nodes
            if type(node).__name__ == "ScaleByLearningRateState" and other
        )

    def _count(self, path: tuple) -> Array:
        if self.count is not None:
            return self.count
        for n in range(len(path), -1, -1):
            names = {
                jtu.keystr(p)
                for other, node in self.nodes
                if other[:n] == path[:n]
                for field in _FIELDS[type(node).__name__]
                for p, _ in jtu.tree_leaves_with_path(getattr(node, field))
            }
            if names:
                return self._counted(sorted(names))
        return self._counted(list(self.where.given))

    def _counted(self, names: Sequence[str]) -> Array:
        steps = {
            name: int(self._entry(name)["step"])
            for name in names
            if "step" in self._entry(name)
        }
        if len({*steps.values()}) > 1:
            found = listed([f"{n} for `{name}`" for name, n in steps.items()], quote="")
            raise InputError(
                _OWNER,
                f"torch counted different numbers of steps: {found}. Put them into "
                "groups of a `Partition`, or pass `count=...`.",
            )
        if not steps and self.needs_count:
            raise InputError(
                _OWNER,
                "torch's state has no step count, but `opt` has a schedule. Pass "
                "`count=...`, the number of steps taken so far.",
            )
        return jnp.asarray(next(iter(steps.values()), 0), jnp.int32)

    def _check_all_used(self) -> None:
        for name in self.where.given:
            rest = {
                key
                for key in self._entry(name)
                if (name, key) not in self.used and key not in _SCALARS
            }
            if rest:
                raise InputError(
                    _OWNER,
                    f"torch's state has {listed(sorted(rest))} for `{name}`, which has "
                    f"no counterpart in `opt`. {_OTHER}",
                )
