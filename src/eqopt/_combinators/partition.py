"""A separate transformation for each group of parameters."""

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

from .._arguments.fields import static_choice
from .._core import AbstractComposite, AbstractTransformation, Call
from .._errors import InputError
from .._trees.leaves import (
    flatten_updates,
    is_label,
    is_leaf,
    is_parameter,
    keystr,
    label_dict,
    listed,
    parameters,
    select,
)
from .._trees.masks import resolve
from .._trees.parts import seeing_part, sees_part
from .._trees.routes import Report
from .._trees.states import check_keys, check_state
from .._types import Model, Params, PyTree, State
from .chain import checked_parts
from .masked import check_has_shapes, extra_of_part


# A tree of labels like the parameters or a prefix of it, or a function of the
# parameters that returns one.
Labels: TypeAlias = PyTree | Callable[[Params], PyTree]


class PartitionState(eqx.Module):
    """`inner_states`: the state of each group by its label."""

    inner_states: dict[Hashable, State]


class Partition(AbstractComposite):
    """Applies a separate transformation to each group of parameters.

    !!! example

        ```python
        labels = lambda params: jax.tree.map(
            lambda p: "matrix" if p.ndim == 2 else "other", params
        )
        opt = eqopt.Partition(
            {"matrix": eqopt.AdamW(1e-3), "other": eqopt.Adam(1e-2)}, labels
        )
        ```

    The transformation of a group sees `None` instead of the parameters of other groups.
    So a norm is a norm over the group, and there is no state for other parameters.

    **Arguments:**

    - `transformations`: a dictionary from labels to transformations. A label is a
        string, an integer, a member of an enumeration, or any other hashable value that
        JAX treats as a leaf of a tree. So tuples and `None` cannot be labels. `init`
        warns of a label that no leaf has.
    - `labels`: a tree of labels with the structure of the parameters or a prefix of it,
        or a function of the parameters that returns one. An `eqx.Module` or another
        node of a tree is a tree, even if it can be called. Values at leaves that are
        not parameters do not matter.

    A group without any gradient in a step does not run: its counts stay as they are.

    **Raises:**

    A `ValueError` that lists key paths, if a parameter (in `init`) or an update (in
    `update` and `step`) has no label, or a label without a transformation.
    """

    names: tuple[Hashable, ...] = eqx.field(static=True)
    transformations: tuple[AbstractTransformation, ...]
    labels: Labels = static_choice()

    def __init__(self, transformations: Mapping[Any, Any], labels: Labels):
        # Converted to Python values: NumPy numbers count as arrays, which cannot be
        # static.
        self.names = tuple(
            x.item() if isinstance(x, np.generic) else x for x in transformations
        )
        named = {f"the one for {label!r}": t for label, t in transformations.items()}
        self.transformations = checked_parts(named)
        self.labels = labels

    def __getitem__(self, label: Hashable) -> AbstractTransformation:
        return dict(zip(self.names, self.transformations, strict=True))[label]

    def init(self, params: Params) -> PartitionState:
        self._check_all_labelled(params, params)
        parts = self._split(parameters(params), params)
        self._warn_of_unused(parts, params)
        with seeing_part(params):
            states = {name: self[name].init(part) for name, part in parts.items()}
        return PartitionState(label_dict(states))

    def _route(self, report: Report, params: Params) -> None:
        for name, part in self._split(params, params).items():
            with report.inside(repr(name)), seeing_part(params):
                self[name]._route(report, part)

    def handle(self, call: Call, state: PartitionState) -> tuple[Any, PartitionState]:
        self._check_labels(state)
        updates, params, extra, is_step, _ = call
        check_has_shapes(self, self.labels, call)
        flatten_updates(updates)  # what has no label is in no group that checks it
        self._check_all_labelled(updates, params)
        grads = self._split(updates, params)
        has_params = params is not None
        parts = self._split(params, params) if has_params else dict.fromkeys(grads)
        results, states = [], {}
        for name, part in parts.items():
            of_part = extra_of_part(extra, part, params)
            group = Call(grads[name], part, of_part, is_step)
            with seeing_part(params, updates):
                result, states[name] = group.run(self[name], state.inner_states[name])
            results.append(result)
        rest = [params] if is_step else []
        result = eqx.combine(*results, *rest, is_leaf=is_leaf)
        return result, PartitionState(label_dict(states))

    def eval_params(self, state: PartitionState, params: Model) -> Model:
        check_state(self, state)
        self._check_labels(state)
        states = state.inner_states
        parts = self._split(params, params)
        with seeing_part(params):
            new = [self[x].eval_params(states[x], part) for x, part in parts.items()]
        return eqx.combine(*new, params, is_leaf=is_leaf)

    def _check_labels(self, state: PartitionState) -> None:
        check_keys(state.inner_states, self.names, ".inner_states")

    def _warn_of_unused(self, parts: Mapping[Hashable, PyTree], params: Params) -> None:
        """Warns of labels that no leaf has, unless there are no parameters at all.

        It is no error, because one dictionary may be for several models. A part of the
        parameters does not need all labels, and a group that is frozen may be empty.
        """
        if sees_part():
            return
        are_used = [bool(jtu.tree_leaves(part)) for part in parts.values()]
        if all(are_used) or not any(are_used):
            return
        wholes = self._split(params, params)  # also labels of other leaves
        unused = [
            name
            for name, whole in wholes.items()
            if not (jtu.tree_leaves(whole) or getattr(self[name], "_freezes", False))
        ]
        if unused:
            used = [name for name in self.names if name not in unused]
            labels = " or ".join(map(repr, unused))
            warnings.warn(
                f"Partition: no parameter has the label {labels}, only {used}. Does a "
                "rule in `labels` match too little? Print `eqopt.groups.table(labels, "
                "model)`, or remove the transformation of this label. If one dictionary "
                "is for several models, call "
                "`warnings.filterwarnings('ignore', 'Partition: no parameter')`.",
                stacklevel=2,
            )

    def _check_all_labelled(self, tree: PyTree, params: Params | None) -> None:
        """Raises a `ValueError` if an array in `tree` is in no group."""
        labels = resolve("labels", self.labels, tree, params)
        leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
        strays: dict[str, list[str]] = {}
        for i, (label, leaf) in enumerate(zip(labels, leaves, strict=True)):
            is_known = is_label(label) and label in self.names
            if is_parameter(leaf) and not is_known:
                has = "has no label" if label is None else f"has the label {label!r}"
                strays.setdefault(has, []).append(keystr(tree, i))
        if strays:
            raise InputError(
                "every parameter needs one of the labels "
                f"{[*self.names]}, but "
                + "; ".join(f"{listed(paths)} {has}" for has, paths in strays.items())
                + ". End `eqopt.groups.label` with a rule for the rest, "
                "`eqopt.groups.everything`, or call `init` with the labelled part."
            )

    def _split(self, tree: PyTree, params: Params | None) -> dict[Hashable, PyTree]:
        """For each label, `tree` with `None` at leaves with other labels."""
        labels = resolve("labels", self.labels, tree, params)
        return {
            name: select(tree, [is_label(x) and bool(x == name) for x in labels])
            for name in self.names
        }
