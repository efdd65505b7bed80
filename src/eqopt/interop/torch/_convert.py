"""Continues a training run of torch: its parameters in a model, and its state."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._core import AbstractTransformation
from ..._errors import InputError
from ..._trees.leaves import is_leaf, is_parameter, listed
from ..._trees.masks import resolve
from ..._types import IntegerLike, Mask, Params, State
from ..._wrappers.averages.param_averages import SWA
from ..._wrappers.scheduled import Scheduled
from ...numerics._numerics import common_dtype
from .._parts import (
    checked_count,
    instances_of,
    learning_rates,
    map_nodes,
    nodes_of,
    with_rate,
)


def params_from_torch(
    tensors: Iterable[Any],
    params: Params,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
) -> Params:
    """The model with the parameters of a torch module.

    !!! example

        ```python
        model = params_from_torch(network.parameters(), model)
        ```

    **Arguments:**

    - `tensors`: `network.parameters()`, `network.named_parameters()` or
        `network.state_dict()`; or NumPy arrays, alone or in a dictionary with their
        names. A `state_dict` may also have buffers: pass `None` for them in `paths`.
    - `params`: the model.
    - `paths`: the key path in the model of each tensor in order, such as
        `".layers[0].weight"`, and `None` for a tensor that the model does not have. By
        default, tensors are matched by name if every name is a key path of the model
        (`layers.0.weight` is `.layers[0].weight`). Otherwise, they are matched in order
        if their shapes agree in order, or by shape if no shape occurs twice. The bias
        of an `eqx.nn.Conv`, which has more axes here, agrees with torch's.
    - `transpose`: which matrices of the model are the transposes of torch's: a tree of
        bools like the model or a prefix of it (`True` for all matrices), or a function
        of the model that returns one, such as an [`eqopt.groups.Selector`][]. The last
        two axes are swapped. Equinox's linear layers, convolutions, embeddings and
        norms have the same layout as torch's and do not need this. The kernel of a
        transposed convolution is flipped, too: pass it in Equinox's layout.

    **Returns:**

    `params`, with the values of torch in the dtypes of the model. A parameter that is
    not in `paths` stays unchanged.

    **Raises:**

    A `ValueError` that names key paths if parameters cannot be matched, if shapes
    differ, if a parameter is complex, or if the dtype of the model would lose digits.
    """
    tensors = tensors.items() if isinstance(tensors, Mapping) else tensors
    pairs = [x if isinstance(x, tuple) else (None, x) for x in tensors]
    arrays = [array_of(x) for _, x in pairs]
    given = [Given(i, 0, arrays[i].shape, name) for i, (name, _) in enumerate(pairs)]
    where = places(given, params, paths, transpose)

    def taken(path: tuple, x: Any) -> Any:
        name = jtu.keystr(path)
        if name not in where.given:
            return x
        source = arrays[where.given[name].key]
        return fitted(source, x, f"The parameter `{name}`", name in where.transposed)

    return jtu.tree_map_with_path(taken, params, is_leaf=is_leaf)


@dataclasses.dataclass(frozen=True)
class Given:
    """A parameter of torch, as far as it is known.

    - `key`: its key in the state of an optimizer.
    - `group`: the number of its group.
    - `shape`, `name`: `None` if they are not known.
    """

    key: Any
    group: int
    shape: tuple[int, ...] | None
    name: str | None


@dataclasses.dataclass(frozen=True)
class Places:
    """The position of each parameter of torch in a model.

    - `given`: torch's parameters by the key paths of the model. Parameters that torch
        does not have are not in it.
    - `transposed`: the key paths of transposed matrices.
    """

    given: dict[str, Given]
    transposed: frozenset[str]


def given_in(groups: Iterable[dict], shape_of: Callable[[Any], Any]) -> list[Given]:
    """The parameters in `param_groups`, in order, with their shapes by their keys."""
    found = []
    for i, group in enumerate(groups):
        keys = group["params"]
        names = group.get("param_names") or [None] * len(keys)
        for key, name in zip(keys, names, strict=True):
            found.append(Given(key, i, shape_of(key), name))
    return found


def places(
    given: Sequence[Given],
    params: Params,
    paths: Sequence[str | None] | None,
    transpose: Mask | None,
) -> Places:
    """Where the parameters in `given` are, by `paths`, by their names or their shapes."""
    found = jtu.tree_leaves_with_path(params, is_leaf)
    leaves = {jtu.keystr(path): x for path, x in found if is_parameter(x)}
    transposed = _transposed(params, transpose)
    shapes = {
        path: _swapped(x.shape) if path in transposed else tuple(x.shape)
        for path, x in leaves.items()
    }
    name, places = ("the model", leaves) if paths is None else ("`paths`", paths)
    if len(places) != len(given):
        problem = f"torch has {len(given)} parameters, but {name} has {len(places)}."
        raise InputError(f"{problem} {_how_to(leaves)}")
    if paths is None:
        chosen = _named(given, leaves) or _shaped(given, shapes)
    else:
        chosen = list(paths)
        known = [path for path in chosen if path is not None]
        wrong = [x for x in known if x not in leaves or known.count(x) > 1]
        if wrong:
            raise InputError(
                f"`paths` has {listed(wrong)} more than once, or the model has no "
                f"such parameter. {_how_to(leaves)}"
            )
        for path, one in zip(chosen, given, strict=True):
            if path and one.shape is not None and not _fits(one.shape, shapes[path]):
                raise InputError(
                    f"`paths` has `{path}`, of shape {shapes[path]} in torch's layout, "
                    f"for a parameter of shape {one.shape}. If matrices are transposed, "
                    "pass `transpose`."
                )
    for path in chosen:
        if path is not None and jnp.issubdtype(leaves[path].dtype, np.complexfloating):
            raise InputError(
                f"`{path}` is complex, which torch's optimizers treat as two numbers, "
                "but eqopt's do not."
            )
    pairs = zip(chosen, given, strict=True)
    return Places({path: one for path, one in pairs if path is not None}, transposed)


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes are equal without axes of length 1, which may be missing."""
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def _swapped(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that an array has in torch if it is transposed here."""
    return (*shape[:-2], *reversed(shape[-2:]))


def _transposed(params: Params, mask: Mask | None) -> frozenset[str]:
    if mask is None:
        return frozenset()
    flags = resolve("transpose", mask, params, params)
    leaves = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)[0]
    pairs = zip(leaves, flags, strict=True)
    return frozenset(
        jtu.keystr(p) for (p, x), flag in pairs if flag and is_parameter(x)
    )


def _named(given: Sequence[Given], leaves: dict[str, Any]) -> list[str] | None:
    """By the names in torch, if all of them are key paths of the model."""
    tokens = {tuple(re.findall(r"\w+", path)): path for path in leaves}
    found = [tokens.get(tuple((one.name or "").split("."))) for one in given]
    known = [path for path in found if path is not None]
    return known if len(known) == len(given) == len(leaves) == len({*known}) else None


def _shaped(given: Sequence[Given], shapes: dict[str, tuple[int, ...]]):
    """In order if the shapes agree, otherwise by shape if each shape occurs once."""
    paths = list(shapes)
    theirs = {one.shape for one in given}

    def fits(one: Given, path: str) -> bool:
        # The bias of a convolution in Equinox has axes of length 1 that torch lacks.
        # It could be the weight of `Linear(1, n)`, unless torch has no such shape.
        shape = shapes[path]
        tail = shape[len(one.shape or ()) :]
        longer = one.shape is not None and (*one.shape, *tail) == shape
        is_bias = longer and {*tail} == {1} and shape not in theirs
        return one.shape is None or one.shape == shape or is_bias

    pairs = enumerate(zip(given, paths, strict=True))
    wrong = [(i, one, path) for i, (one, path) in pairs if not fits(one, path)]
    if not wrong:
        return paths
    exact = lambda one: [path for path in paths if shapes[path] == one.shape]
    known = [exact(one) or [p for p in paths if fits(one, p)] for one in given]
    if all(len(found) == 1 for found in known):
        unique = [found[0] for found in known]
        if len({*unique}) == len(paths):
            return unique
    i, one, path = wrong[0]
    name = f" ({one.name})" if one.name else ""
    fix = f"{_how_to(paths)} If matrices are transposed, pass `transpose`."
    raise InputError(
        f"parameter {i} of torch{name} has shape {one.shape}, but `{path}` has shape "
        f"{shapes[path]}. {fix}"
    )


def _how_to(paths: Iterable[str]) -> str:
    return (
        "Pass `paths`, the key path of each parameter of torch, or `None`. The model has "
        f"{listed(list(paths))}."
    )


#
# Tensors as JAX arrays.
#


def array_of(tensor: Any) -> np.ndarray:
    """The values of a tensor, on any device, or of an array."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # not supported by NumPy
        import torch

        return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def number(x: Any) -> Any:
    """A hyperparameter of torch, a number or a tensor, as a Python number."""
    return x.item() if hasattr(x, "item") else x


def fitted(
    given: np.ndarray, expected: Any, what: str, transposed: bool = False
) -> Array:
    """A copy of `given` with the shape and dtype of `expected`.

    Axes of length 1 may be missing or surplus, and an array may become wider.
    """
    if transposed and given.ndim > 1:
        given = given.swapaxes(-1, -2)
    if not _fits(given.shape, expected.shape):
        problem = f"{what} has shape {given.shape} in torch, expected {expected.shape}."
        fix = "If the matrix is transposed, pass `transpose`."
        raise InputError(f"{problem} {fix}")
    if common_dtype(given.dtype, expected.dtype) != expected.dtype:
        raise InputError(
            f"{what} has dtype {given.dtype} in torch, expected {expected.dtype}, which "
            "would lose digits. Make the model or the state wider (`mu_dtype=...`), or "
            "convert torch's tensors."
        )
    return jnp.array(given.reshape(expected.shape), expected.dtype, copy=True)


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
    given = given_in(groups, lambda key: _shape_of(entries.get(key, {})))
    where = places(given, params, paths, transpose)
    template = opt.init(params)
    converter = Converter(opt, template, where, entries, groups, count)
    is_new = not converter.needs_count if count is None else count == 0
    if not any(entries.values()) and is_new:
        return template
    return converter.converted()


_OTHER = "Was it made by another optimizer, or with other options?"
_FREEZE = (
    "If it is not trained there, freeze it: `from_torch(optimizer, model, paths=...)`, "
    "with `None` for it."
)
_ADAM = {"mu": "exp_avg", "nu": "exp_avg_sq"}
_FACTORED = {"v_row": "row_var", "v_col": "col_var", "v": "variance"}

# The fields of states that have an array for each parameter, by its name in torch.
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "AddDecayedWeightsState": {},
    "SWAState": {"average": "ax"},
    "ScaleByAMSGradState": {**_ADAM, "nu_max": "max_exp_avg_sq"},
    "ScaleByAdadeltaState": {"e_g": "square_avg", "e_x": "acc_delta"},
    "ScaleByAdamState": _ADAM,
    "ScaleByAdamaxState": {"mu": "exp_avg", "nu": "exp_inf"},
    "ScaleByFactoredRMSState": _FACTORED,
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

    def __init__(self, opt, template, where, entries, groups, count):
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
            where = jtu.keystr(path) or "(the root)"
            problem = f"the state of `opt` at `{where}` has no counterpart in torch."
            fix = "Use an optimizer as `from_torch` returns it."
            raise InputError(f"{problem} {fix}")
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
            found = listed(sorted(entry)) or "nothing"
            raise InputError(
                f"the {kind} of `opt` needs `{key}` for `{name}`, but torch's state "
                f"has {found} for it. {fix}"
            )
        self.used.add((name, key))
        what = f"The state at `{place}{name}`, `{key}` of torch,"
        return fitted(entry[key], x, what, name in self.where.transposed)

    def _entry(self, name: str) -> Mapping[str, np.ndarray]:
        """What torch has for the parameter at this key path."""
        given = self.where.given.get(name)
        return {} if given is None else self.entries.get(given.key, {})

    def _statistics(self, node, field, name, take, x) -> Array:
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
        sides = [jtu.tree_leaves_with_path(x) for x in (node.v_row, node.v_col)]
        sizes = [y.size for side in sides for p, y in side if jtu.keystr(p) == name]
        if sorted(sizes) != sorted(theirs):
            fix = "`weight_dimension_numbers=eqopt.MatrixDimensionNumbers(-2, -1)`"
            raise InputError(
                f"torch factors the last two axes of `{name}`, but `opt` does not. "
                f"Pass {fix} to it."
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
        entries = {name: self._entry(name) for name in names}
        steps = {name: int(x["step"]) for name, x in entries.items() if "step" in x}
        if len({*steps.values()}) > 1:
            found = listed([f"{n} for `{name}`" for name, n in steps.items()], quote="")
            advice = "Put them into groups of a `Partition`, or pass `count=...`."
            raise InputError(f"torch's counts of steps differ: {found}. {advice}")
        if not steps and self.needs_count:
            problem = "torch's state has no step count, but `opt` has a schedule."
            fix = "Pass `count=...`, the number of steps taken so far."
            raise InputError(f"{problem} {fix}")
        return jnp.asarray(next(iter(steps.values()), 0), jnp.int32)

    def _check_all_used(self) -> None:
        for name in self.where.given:
            used = _SCALARS | {key for path, key in self.used if path == name}
            if rest := self._entry(name).keys() - used:
                raise InputError(
                    f"torch's state has {listed(sorted(rest))} for `{name}`, which has "
                    f"no counterpart in `opt`. {_OTHER}"
                )
