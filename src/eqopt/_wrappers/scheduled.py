"""Schedules for any hyperparameter."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._arguments.checks import check_returned, hyperparameters, waiting
from .._core import AbstractOptimizer, AbstractTransformation, AbstractWrapper, Call
from .._transforms.scale import recorded
from .._trees.states import check_keys, check_state
from .._types import Model, Params, Recorded, State
from ..numerics._numerics import safe_increment
from ..schedules import AbstractStatefulSchedule


class ScheduledState(eqx.Module):
    """The current values of the schedules.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `hyperparams`: the values in the last step (before the first step, the values for
        it), by the key paths of their schedules, such as `".b1"` or
        `".transformations[0].max_norm"`; 0-d float32 arrays.
    - `hyperparams_states`: the states of the stateful schedules, by the same key paths.
    - `inner_state`: the inner state.
    """

    count: Int[Array, ""]
    hyperparams: dict[str, Recorded]
    hyperparams_states: dict[str, State]
    inner_state: State


class Scheduled(AbstractWrapper):
    """Evaluates the schedules among the hyperparameters of a transformation in each step.

    Learning rates and weight decays accept schedules without this wrapper. Inside it,
    all other numbers accept them too, at any depth of chains and wrappers, except for
    integers such as `patience` of [`eqopt.ReduceLROnPlateau`][].

    !!! example

        ```python
        opt = eqopt.Scheduled(
            eqopt.Chain(
                eqopt.ClipByGlobalNorm(eqopt.schedules.Linear(1.0, 0.1, 1000)),
                eqopt.AdamW(1e-3, b1=eqopt.schedules.CosineDecay(0.95, 1000, alpha=0.9)),
            )
        )
        ```

    The state records the current values: `eqopt.tree.get(state,
    "hyperparams")[".transformations[1].b1"]`. Each step computes them again from the
    schedules, so it does not use values that you change in the state. To change a
    hyperparameter, change its schedule in the optimizer: the numbers of an
    [`eqopt.schedules.AbstractSchedule`][] can change without compiling anything again.

    Schedules of learning rates and weight decays are evaluated by their own
    transformations, which count their own steps: inside [`eqopt.MultiSteps`][], they
    take fewer steps. An [`eqopt.schedules.AbstractStatefulSchedule`][] is always
    evaluated here.

    In your own class, this wrapper evaluates every schedule in a field whose annotation
    does not name a function. If the annotation names numbers, such as `float | Array`,
    any function counts as a schedule; otherwise, only an
    [`eqopt.schedules.AbstractSchedule`][] does. A field annotated with `Callable` is
    evaluated by the class itself, and schedules that the parts of an optimizer evaluate
    are left to them.

    **Arguments:**

    - `inner`: the transformation. The values of its schedules are not checked for their
        ranges.

    **Raises:**

    A `ValueError` or `TypeError` in `init` and `update` if a schedule does not return a
    real number. Without this wrapper, `inner` raises a `TypeError` in `init`.
    """

    inner: AbstractTransformation

    def init(self, params: Params) -> ScheduledState:
        states = {name: x.init() for name, x in self._stateful().items()}
        count = jnp.zeros((), jnp.int32)
        values = self._values(count, states, {})
        inner_state = self._at(values).init(params)
        hyperparams = {name: recorded(value) for name, value in values.items()}
        return ScheduledState(count, hyperparams, states, inner_state)

    def eval_params(self, state: State, params: Model) -> Model:
        check_state(self, state)
        self._check_keys(state)
        return self._at(state.hyperparams).eval_params(state.inner_state, params)

    def handle(self, call: Call, state: ScheduledState) -> tuple[Any, State]:
        self._check_keys(state)
        stateful = self._stateful()
        values = self._values(state.count, state.hyperparams_states, call.extra)
        states = {
            name: stateful[name].update(old, **call.extra)
            for name, old in state.hyperparams_states.items()
        }
        last = state.hyperparams
        hyperparams = {name: recorded(x, last[name]) for name, x in values.items()}
        result, inner_state = call.run(self._at(values), state.inner_state)
        count = safe_increment(state.count)
        return result, ScheduledState(count, hyperparams, states, inner_state)

    def _check_keys(self, state: ScheduledState) -> None:
        stateful = self._stateful()
        check_keys(state.hyperparams, self._schedules(), ".hyperparams")
        check_keys(state.hyperparams_states, stateful, ".hyperparams_states")

    def _schedules(self) -> dict[str, Any]:
        return {jtu.keystr(path): schedule for path, schedule in _find(self.inner)}

    def _stateful(self) -> dict[str, AbstractStatefulSchedule]:
        is_stateful = lambda x: isinstance(x, AbstractStatefulSchedule)
        return {name: x for name, x in self._schedules().items() if is_stateful(x)}

    def _values(self, count, states: Mapping[str, State], extra: Mapping):
        values = {}
        for name, schedule in self._schedules().items():
            is_stateful = name in states
            value = schedule(states[name], **extra) if is_stateful else schedule(count)
            values[name] = jnp.asarray(check_returned(name, value))
        return values

    def _at(self, values: Mapping[str, Array]) -> AbstractTransformation:
        """`inner` with numbers instead of its schedules."""
        places = dict(_find(self.inner))
        return jtu.tree_map_with_path(
            lambda path, leaf: values[jtu.keystr(path)] if path in places else leaf,
            self.inner,
            is_leaf=lambda x: any(x is schedule for schedule in places.values()),
        )


def _find(tree: Any, path: tuple = ()) -> Iterator[tuple[tuple, Callable]]:
    """The schedules in `tree` that no owner evaluates."""
    if isinstance(tree, eqx.Module):
        found = waiting(tree) if isinstance(tree, AbstractTransformation) else ()
        found = (*found, *hyperparameters(type(tree)))
        for field in dataclasses.fields(tree):
            x, place = getattr(tree, field.name), (*path, jtu.GetAttrKey(field.name))
            is_plain = field.name in found and callable(x) and not _has_owner(x, tree)
            if is_plain or isinstance(x, AbstractStatefulSchedule):
                yield place, x
            else:
                yield from _find(x, place)
    elif isinstance(tree, tuple | list):
        for i, x in enumerate(tree):
            yield from _find(x, (*path, jtu.SequenceKey(i)))
    elif isinstance(tree, dict):
        for key, x in tree.items():
            yield from _find(x, (*path, jtu.DictKey(key)))


def _has_owner(schedule: Any, owner: eqx.Module) -> bool:
    """Whether a part of an optimizer evaluates the schedule that the optimizer holds."""
    if not isinstance(owner, AbstractOptimizer):
        return False
    chain, is_it = owner.chain, lambda x: x is schedule
    holds = lambda tree: any(map(is_it, jtu.tree_leaves(tree, is_leaf=is_it)))
    return holds(chain) and not any(holds(x) for _, x in _find(chain))
