"""The number of bytes of a state, before a run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from .._errors import InputError
from .._trees.leaves import check_parameters, parameters
from .._trees.masks import resolve
from .._trees.stored import is_stored
from .._types import Params, PyTree, State
from ._search import on_the_way
from ._slots import declared, owners_of


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
        sums = {
            name: sum(r.get(name, 0) for r in self.slots.values()) for name in names
        }
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
    if groups is not None and params is None:
        raise InputError(
            "nbytes", "`groups` needs the model: `nbytes(state, model, groups)`."
        )
    if params is not None:
        check_parameters("nbytes", params)
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
