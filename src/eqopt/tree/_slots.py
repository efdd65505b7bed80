"""What is in a state: slots, which belong to the parameters, and other states."""

import dataclasses
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._arguments.annotations import kinds
from .._arguments.checks import check_needs
from .._errors import InputError
from .._trees.leaves import check_parameters, is_leaf, parameters
from .._trees.masks import resolve
from .._trees.stored import is_stored
from .._types import Params, PyTree, State
from ._arithmetic import column_of
from ._search import _children, _name, on_the_way


TREES = ("exact", "nonnegative", "unknown")
"""The kinds of fields that may hold a tree like the parameters."""

# Fields that hold the states of inner transformations, whatever their class declares.
_INNER = ("inner_state", "inner_states")


class Slot(NamedTuple):
    """A slot of a state, or a leaf that is in no slot.

    - `parts`: what a slot has for each parameter, counting `None`s; `None` for a leaf.
    - `kind`: what the field declares.
    """

    path: tuple
    parts: list | None
    kind: str


def slots_of(params: Params, state: State) -> Iterator[Slot]:
    """The slots of a state, and the leaves in no slot, in order.

    A slot is a field of a state with the structure of the parameters, unless the class
    declares a number or another state. A tree that no field declares is a slot if its
    arrays have the shapes of the parameters.
    """
    arrays, structure = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
    root = structure.node_data()

    def parts_of(node: Any, kind: str) -> list | None:
        # The error of `flatten_up_to` has the text of the whole node, which takes long.
        if root is not None and root[0] is not type(node):
            return None
        try:
            parts = structure.flatten_up_to(node)
        except (ValueError, TypeError):
            return None
        if kind == "state":
            return parts if all(map(_is_like, parts, arrays)) else None
        return parts if kind in (*TREES, "per_leaf") else None

    def walk(path: tuple, node: Any, kind: str) -> Iterator[Slot]:
        parts = parts_of(node, kind)
        if parts is not None or is_stored(node) or jtu.all_leaves([node]):
            yield Slot(path, parts, kind)
            return
        for key, child, below in declared(node, kind):
            yield from walk((*path, key), child, below)

    return walk((), without_padding(state), "state")


def declared(node: Any, kind: str = "state") -> list[tuple[Any, Any, str]]:
    """The children of a node of this kind: their keys, values and kinds."""
    fields = kinds(type(node)) | dict.fromkeys(_INNER, "state")
    other = "state" if kind in TREES else kind
    return [(key, x, fields.get(str(_name(key)), other)) for key, x in _children(node)]


def _is_like(x: Any, p: Any) -> bool:
    return x is None or (p is not None and getattr(x, "shape", None) == p.shape)


class Found(NamedTuple):
    """A leaf of a state.

    - `owner`: the position of its parameter, counting `None`s; `None` without one.
    - `place`: the same if it stands for the parameter: it has the same shape, and is
        not in a tuple, such as factors.
    - `kind`: what the field declares.
    """

    owner: int | None
    place: int | None
    kind: str


def found_in(params: Params, state: State) -> Iterator[Found]:
    """The leaves of a state, with the parameters that they belong to."""
    arrays = jtu.tree_leaves(parameters(params), is_leaf=is_leaf)
    for _, parts, kind in slots_of(params, state):
        if parts is None:
            yield Found(None, None, kind)
        for i, part in enumerate(parts or ()):
            is_alone = kind != "per_leaf" and type(part) not in (tuple, list, dict)
            for x in jtu.tree_leaves(part, is_leaf=is_stored):
                stands = is_alone and _is_like(x, arrays[i])
                yield Found(i, i if stands else None, kind)


def owners_of(params: Params, state: State) -> list[int | None]:
    """For each leaf of a state, the position of the parameter that it belongs to."""
    return [x.owner for x in found_in(params, state)]


def without_padding(state: State) -> State:
    """`state`, where arrays that `eqopt.ZeRO1` has padded have their own shapes."""
    is_padded = lambda x: hasattr(type(x), "_without_padding")
    own = lambda x: x._without_padding if is_padded(x) else x
    return jtu.tree_map(own, state, is_leaf=is_padded)


class Part(NamedTuple):
    """A state inside a state, without the states inside it.

    **Attributes:**

    - `path`: its key path.
    - `kind`: its class; for an array outside any class, the string `"array"`.
    - `values`: its arrays, stored arrays and numbers, by their key paths in the whole
        state.
    """

    path: tuple
    kind: Any
    values: Mapping[tuple, Any]

    @property
    def name(self) -> str:
        return getattr(self.kind, "__name__", self.kind)

    @property
    def key(self) -> Any:
        # Not the class itself: a notebook may have executed its definition again.
        kind = self.kind
        return kind if isinstance(kind, str) else (kind.__module__, kind.__qualname__)

    def labels(self, start: int = 0) -> tuple:
        """The labels of groups and names of parts on its path, after `start` keys.

        These mean the same in another chain or wrapper: positions and fields do not.
        """
        return tuple(x.key for x in self.path[start:] if isinstance(x, jtu.DictKey))

    def without(self, values: Container[tuple]) -> "Part":
        """This part without the values at these key paths."""
        rest = {path: x for path, x in self.values.items() if path not in values}
        return self._replace(values=rest)


def parts_of(state: State) -> list[Part]:
    """All parts of a state that have values, a wrapper before its inner state."""
    return [part for part in _parts((), state) if part.values]


def _parts(path: tuple, node: Any) -> Iterator[Part]:
    if is_stored(node) or jtu.all_leaves([node]):
        yield Part(path, "array", _values(path, node))
    elif _is_container(node):
        for key, child in _children(node):
            yield from _parts((*path, key), child)
    else:
        children = [((*path, key), x, kind) for key, x, kind in declared(node)]
        inner = {at: x for at, x, kind in children if kind == "state" and _has_state(x)}
        own = [_values(at, x) for at, x, _ in children if at not in inner]
        values = {k: x for of_child in own for k, x in of_child.items()}
        yield Part(path, type(node), values)
        for at, x in inner.items():
            yield from _parts(at, x)


def _is_container(node: Any) -> bool:
    is_plain = isinstance(node, tuple | list | dict) and not hasattr(node, "_fields")
    return node is None or is_plain


def _has_state(tree: Any) -> bool:
    """Whether a node of the tree is a state: its name ends with "State"."""
    is_state = lambda x: type(x).__name__.endswith("State")
    return any(map(is_state, jtu.tree_leaves(tree, is_leaf=is_state)))


def _values(path: tuple, node: Any) -> dict[tuple, Any]:
    leaves = jtu.tree_leaves_with_path(node, is_leaf=is_stored)
    is_value = lambda x: hasattr(x, "dtype") or isinstance(x, int | float | complex)
    return {(*path, *rest): x for rest, x in leaves if is_value(x)}


#
# The number of bytes of a state, before a run
#


@dataclasses.dataclass(frozen=True)
class ByteCount:
    """The result of [`eqopt.tree.nbytes`][]. `print` shows it as a table.

    **Attributes:**

    - `slots`: for each slot of the state, such as `"ScaleByAdamState.mu"`, the bytes of
        each group of parameters by name. Arrays that belong to no parameter, such as a
        count, are in the group `""`. Without groups, everything is in `""`.
    - `parameters`: the number of parameters; `None` if they were not given.
    """

    slots: Mapping[str, Mapping[str, int]]
    parameters: int | None = None

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(sum(groups.values()) for groups in self.slots.values())

    def __str__(self) -> str:
        names = [*dict.fromkeys(name for row in self.slots.values() for name in row)]
        several = names if len(names) > 1 else []
        sums = {x: sum(r.get(x, 0) for r in self.slots.values()) for x in names}
        each = ["per parameter"] if self.parameters else []
        lines = [["slot", *(name or "(none)" for name in several), "bytes", *each]]
        for slot, row in [*self.slots.items(), ("total", sums)]:
            size = sum(row.values())
            numbers = [f"{row.get(name, 0):,}" for name in several] + [f"{size:,}"]
            if self.parameters:
                numbers.append(f"{size / self.parameters:.3f}")
            lines.append([slot, *numbers])
        return aligned(lines, numbers=True)


def aligned(rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """A table as text. With `numbers`, all columns but the first are aligned right."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        justify = str.rjust if numbers and i else str.ljust
        columns.append([justify(cell, width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def nbytes(
    state: State,
    params: Params | None = None,
    groups: PyTree | Callable[[Params], PyTree] | None = None,
) -> ByteCount:
    """The number of bytes of a state, by slots and by groups of parameters.

    No arrays are needed: pass `eqx.filter_eval_shape(opt.init, model)` before a run.

    !!! example

        ```python
        storage = eqopt.storage.BlockwiseQuantized()
        opt = eqopt.StoreState(eqopt.AdamW(1e-3), storage)
        state = eqx.filter_eval_shape(opt.init, model)
        print(eqopt.tree.nbytes(state, model))
        # slot                         bytes  per parameter
        # ScaleByAdamState.count           4          0.000
        # ScaleByAdamState.mu         67,584          1.031
        # ...
        ```

    **Arguments:**

    - `state`: the state that `init`, `update` or `step` returned, or its shapes. Any
        other tree, such as a model, counts as one slot.
    - `params`: the parameters that the state belongs to, to show the bytes per
        parameter.
    - `groups`: labels, a mask, or a selector of `eqopt.groups`: a tree like the
        parameters, a prefix of one, or a function of the parameters. The bytes are then
        also counted for each group. It needs `params`.

    **Returns:**

    An [`eqopt.tree.ByteCount`][]; `print` it, or use its `total`. For sharded arrays,
    it counts the bytes on all devices once.

    **Raises:**

    A `ValueError` if `groups` is given without `params`, or if they do not fit
    together.
    """
    is_met = groups is None or params is not None
    check_needs("groups", "params", is_met, "Call `nbytes(state, model, groups)`.")
    if params is not None:
        check_parameters(params)
    leaves = jtu.tree_leaves_with_path(state, is_leaf=is_stored)
    names, count = [""] * len(leaves), None
    if params is not None:
        count = sum(x.size for x in jtu.tree_leaves(parameters(params), is_stored))
        if groups is not None:
            labels = resolve("groups", groups, params, params)
            of = lambda owner: "" if owner is None else str(labels[owner])
            names = [of(owner) for owner in owners_of(params, state)]
    slots: dict[str, dict[str, int]] = {}
    for (path, x), name in zip(leaves, names, strict=True):
        size = sum(map(bytes_of, jax.tree.leaves(x)))
        if size:
            row = slots.setdefault(_slot(state, path), {})
            row[name] = row.get(name, 0) + size
    return ByteCount(slots, count)


def bytes_of(x: Any) -> int:
    return x.size * x.dtype.itemsize if hasattr(x, "dtype") else 0


def _slot(state: State, path: tuple) -> str:
    """The innermost field of a state on the path to the leaf."""
    found = "(the tree)"
    for node, key in on_the_way(state, path):
        name = type(node).__name__
        if isinstance(key, jtu.GetAttrKey) and name.endswith("State"):
            found = f"{name}.{key.name}"
            kind = next(kind for k, _, kind in declared(node) if k == key)
            if kind != "state":
                break  # what follows belongs to the model
    return found


#
# The leaves of a state that stand for parameters
#


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: State,
    /,
    *rest: PyTree,
    params: Params | None = None,
    transform_non_params: Callable[[Any], Any] | None = None,
) -> PyTree:
    """Applies `f` to the leaves of an optimizer's state that stand for parameters.

    Use it for shardings that follow the parameters, or to move averages to the host.

    A leaf of the state *stands for a parameter* if a field of the state is a tree with
    the structure of the parameters, and the leaf has the position and the shape of that
    parameter in it. This includes first and second moments, averages, and copies of the
    parameters. It excludes counts, keys, learning rates and other fields whose class
    [declares a number](../writing_a_transformation.md#the-whole-tree-at-once), factors,
    Adafactor's sums over rows and columns, and all vectors of [`eqopt.Flatten`][].
    Leaves that [`eqopt.ZeRO1`][] has padded are included.

    !!! example

        ```python
        specs = jax.tree.map(spec_of, eqx.filter(model, eqx.is_inexact_array))
        state_specs = eqopt.tree.map_params(
            opt,
            lambda _, spec: spec,
            state,
            specs,
            params=model,
            transform_non_params=lambda _: jax.sharding.PartitionSpec(),
        )
        ```

    **Arguments:**

    - `initable`: the optimizer, or its `init`.
    - `f`: a function of such a leaf and the leaves of `rest` for the same parameter.
    - `state`: the state that `init` or `update` returned. If `params` is given, it may
        also be abstract, or the result of another `map_params`.
    - `rest`: trees with the structure of the parameters, with any leaves.
    - `params`: the parameters, or the whole model, that the state belongs to; its
        arrays may be `jax.ShapeDtypeStruct`s. With `None`, the default, the parameters
        are inferred from the trees that the classes of the state declare. This fails
        if none of them has the shapes of the parameters. A state without a class needs
        `params`.
    - `transform_non_params`: a function that is applied to all other leaves. By
        default, they stay unchanged.

    **Returns:**

    A tree like `state`.

    **Raises:**

    A `ValueError` if `state` is not a state of `initable` for `params`, if the
    parameters cannot be inferred, or if a tree of `rest` has another structure.
    """
    init = getattr(initable, "init", initable)
    if params is None:
        params, abstract = _inferred(init, state), state
    else:
        abstract = eqx.filter_eval_shape(init, params)
    treedef = jtu.tree_structure(abstract, is_leaf=is_stored)
    values = column_of(treedef, "state", state, "init(params)", abstract)
    arrays = parameters(params)
    structure = jtu.tree_structure(arrays, is_leaf=is_leaf)
    columns = [
        column_of(structure, f"rest[{i}]", tree, "params", arrays)
        for i, tree in enumerate(rest)
    ]
    other = transform_non_params or (lambda x: x)
    return treedef.unflatten(
        other(x) if place is None else f(x, *(column[place] for column in columns))
        for x, (_, place, _) in zip(values, found_in(params, abstract), strict=True)
    )


def _inferred(init: Callable, state: State) -> Params:
    """Parameters for which `init` would return `state`; only their shapes matter.

    One of the slots has the structure of the parameters. The largest shapes in slots
    like it are the shapes of the parameters, if `init` makes a tree like `state` from
    them.
    """
    slots: dict[Any, list[list]] = {}
    for tree in _declared(without_padding(state), "state"):
        leaves, structure = jtu.tree_flatten(tree, is_leaf=is_leaf)
        if any(x is not None for x in leaves):
            slots.setdefault(structure, []).append(leaves)
    for structure, rows in slots.items():
        params = structure.unflatten(map(_largest, zip(*rows, strict=True)))
        if _is_state_of(init, params, state):
            return params
    if slots:
        raise InputError(
            "the parameters cannot be inferred from this `state` of this optimizer. "
            "Pass the model: `params=model`."
        )
    return None


def _declared(node: Any, kind: str) -> Iterator[Any]:
    """The trees in a state that its classes declare."""
    if kind in TREES:
        yield node
    elif not is_stored(node):
        for _, child, below in declared(node, kind):
            yield from _declared(child, below)


def _largest(leaves: tuple) -> jax.ShapeDtypeStruct | None:
    shapes = [x.shape for x in leaves if hasattr(x, "shape")]
    by_size = lambda shape: (len(shape), shape)
    return jax.ShapeDtypeStruct(max(shapes, key=by_size), "float32") if shapes else None


def _is_state_of(init: Callable, params: Params, state: State) -> bool:
    try:
        with warnings.catch_warnings():  # about parameters that the user does not have
            warnings.simplefilter("ignore")
            other = eqx.filter_eval_shape(init, params)
    except Exception:
        return False
    return _form(other) == _form(state)


def _form(state: State) -> Any:
    leaves, structure = jtu.tree_flatten(state)
    return structure, [*map(np.shape, leaves)]
