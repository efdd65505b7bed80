"""The numbers to log that a state holds, by name."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._types import State
from ._search import _name, step_count
from ._slots import Part, parts_of


# The fields of states that are numbers to log, by the class if another class may use
# the same name for something else. `ApplyIfFinite` also counts the steps that it takes
# after it has given up, so its count is not a number of skipped steps.
_FIELDS: dict[tuple[Any, str | None], str] = {
    ("learning_rate", None): "learning_rate",
    ("grad_norm", None): "grad_norm",
    ("loss_scale", "DynamicLossScaleState"): "loss_scale",
    ("total_skipped", "SkipStepState"): "skipped",
    ("total_notfinite", "DynamicLossScaleState"): "skipped",
    ("total_notfinite", "ApplyIfFiniteState"): "not_finite",
}

# The fields with dictionaries of measurements, by class.
_MEASURED = {"SnapshotState": "measurement", "MonitorState": "measurements"}

_RECORDED_BY = {
    "grad_norm": "Wrap the optimizer: `eqopt.RecordGradNorm(opt)`.",
    "learning_rate": "End the chain with `eqopt.ScaleByLearningRate(...)`.",
    "loss_scale": "Only `eqopt.DynamicLossScale` has one.",
    "not_finite": "Wrap the optimizer: `eqopt.ApplyIfFinite(opt, 5)`.",
    "skipped": "Wrap the optimizer: `eqopt.SkipStep(opt, eqopt.SigmaRule())`.",
    "step": "End the chain with `eqopt.ScaleByLearningRate(...)`, which counts steps.",
    "update_norm": "End the chain with `eqopt.Snapshot('update_norm', "
    "eqopt.tree.norm)`.",
}


def metrics(state: State, *names: str) -> dict[str, Array | np.ndarray]:
    """The numbers to log that a state holds, by name.

    !!! example

        ```python
        model, state = opt.step(grads, state, model)
        logged = {"loss": loss, **eqopt.tree.metrics(state)}
        ```

    It only reads the state and computes nothing, except that it adds the counts of two
    nested wrappers that skip steps. Inside `eqx.filter_jit`, the compiled program
    returns a few more numbers. A number that the state does not hold is not in the
    result. These are the names:

    - `step`: the number of steps, see [`eqopt.tree.step_count`][].
    - `learning_rate`: in the last step.
    - `grad_norm`: of the gradients in the last step, if the optimizer is inside
        [`eqopt.RecordGradNorm`][].
    - `skipped`: the number of steps that [`eqopt.SkipStep`][] and
        [`eqopt.DynamicLossScale`][] have skipped.
    - `not_finite`: the number of gradients that were not finite for
        [`eqopt.ApplyIfFinite`][]. It skips these steps unless it has given up.
    - `loss_scale`: of [`eqopt.DynamicLossScale`][].
    - each measurement of [`eqopt.Snapshot`][] and [`eqopt.Monitor`][], by its name. For
        a tree of arrays, the key path is appended.
    - each other hyperparameter that [`eqopt.Scheduled`][] evaluates, such as `b1`.

    In a group of an [`eqopt.Partition`][], `/` and the label follow, as in
    `learning_rate/matrices`. If there are still several numbers with the same name,
    names of an [`eqopt.NamedChain`][] follow too, or else the key path in the state.
    Only the number of steps is called `step`; a measurement with this name gets its key
    path.

    **Arguments:**

    - `state`: the state that `init` or the last `step` returned.
    - `names`: the names without labels, such as `"learning_rate"`. Defaults to all.

    **Returns:**

    A dictionary from names to arrays of the state, usually 0-d.

    **Raises:**

    A `KeyError` if the state holds no number with one of the `names`. It says what
    records this number. A `TypeError` if `state` is an optimizer or a model.
    """
    parts = parts_of(state)
    numbers = [*itertools.chain.from_iterable(map(_numbers, parts))]
    # A scheduled learning rate is also in the state of the part that applies it.
    known = {number.name for number in numbers if not _is_measured(number)}
    scheduled = itertools.chain.from_iterable(map(_scheduled, parts))
    found: dict[str, list[_Number]] = {}
    for number in [*numbers, *(x for x in scheduled if x.name not in known)]:
        found.setdefault(number.name, []).append(number)
    logged = {name: _labelled(name, numbers) for name, numbers in found.items()}
    with contextlib.suppress(KeyError):
        others = {f"step/{jtu.keystr(x.path)}": x.value for x in found.get("step", ())}
        logged["step"] = {"step": step_count(state), **others}
    for name in names:
        if name not in logged:
            raise KeyError(_missing(state, name, sorted(logged)))
    chosen = [logged[name] for name in names or logged]
    return {label: x for numbers in chosen for label, x in numbers.items()}


class _Number(NamedTuple):
    """A number to log: its name, the state that holds it, its key path, its value."""

    name: str
    part: Part
    path: tuple
    value: Any


def _is_measured(number: _Number) -> bool:
    """Whether the user chose its name."""
    return number.part.name in _MEASURED


def _numbers(part: Part) -> Iterator[_Number]:
    for path, value in part.values.items():
        field, *rest = path[len(part.path) :] or (None,)
        own = _name(field)
        if rest and own == _MEASURED.get(part.name):
            name = f"{rest[0].key}{jtu.keystr(tuple(rest[1:]))}"
            yield _Number(name, part, path, value)
        elif not rest:
            name = _FIELDS.get((own, None)) or _FIELDS.get((own, part.name))
            if name is not None:
                yield _Number(name, part, path, value)


def _scheduled(part: Part) -> Iterator[_Number]:
    for path, value in part.values.items():
        field, *rest = path[len(part.path) :] or (None,)
        if part.name == "ScheduledState" and _name(field) == "hyperparams":
            yield _Number(rest[0].key.rpartition(".")[2], part, path, value)


def _labelled(name: str, numbers: list[_Number]) -> dict[str, Any]:
    """The numbers with one name, by the shortest labels that tell them apart."""
    adds = name == "skipped" and not any(map(_is_measured, numbers))
    for labels in (_groups, lambda x: x.part.labels(), lambda x: [jtu.keystr(x.path)]):
        named: dict[str, list[Any]] = {}
        for number in numbers:
            label = "/".join([name, *map(str, labels(number))])
            named.setdefault(label, []).append(number.value)
        if adds or len(named) == len(numbers):
            break
    return {label: sum(x[1:], start=x[0]) for label, x in named.items()}


def _groups(number: _Number) -> list[Any]:
    """The labels of the groups of parameters that a number belongs to."""
    return [
        key.key
        for field, key in itertools.pairwise(number.part.path)
        if _name(field) == "inner_states" and isinstance(key, jtu.DictKey)
    ]


def _missing(state: State, name: str, known: list[str]) -> str:
    advice = _RECORDED_BY.get(
        name, "To measure something else, use `eqopt.Snapshot` or `eqopt.Monitor`."
    )
    kind = type(state).__name__
    return f"metrics: this {kind} holds no number {name!r}, only {known}. {advice}"
