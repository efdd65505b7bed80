"""The equivalent states of the two libraries, and the names of their fields."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu


# The states of eqopt, and the corresponding states of Optax. (In Optax, several
# optimizers share Adam's state.)
PARTNERS: Mapping[str, tuple[str, ...]] = {
    "AddDecayedWeightsState": ("WeightDecaySchedule",),
    "EMAState": ("EmaState",),
    "ProximalDecayState": ("ScaleByScheduleState",),
    "ScaleByAMSGradState": ("ScaleByAmsgradState",),
    "ScaleByAdEMAMixState": ("ScaleByAdemamixState",),
    "ScaleByAdadeltaState": ("ScaleByAdaDeltaState",),
    "ScaleByAdamState": ("ScaleByAdamState",),
    "ScaleByAdamaxState": ("ScaleByAdamState",),
    "ScaleByAdanState": ("ScaleByAdanState",),
    "ScaleByBeliefState": ("ScaleByBeliefState",),
    "ScaleByLearningRateState": ("ScaleByScheduleState",),
    "ScaleByLionState": ("ScaleByLionState",),
    "ScaleByNovoGradState": ("ScaleByNovogradState",),
    "ScaleByRAdamState": ("ScaleByAdamState",),
    "ScaleByRMSState": ("ScaleByRmsState", "ScaleByRmsWithCountState"),
    "ScaleByRSSState": ("ScaleByRssState",),
    "ScaleByScheduleState": ("ScaleByScheduleState",),
    "ScaleBySimplifiedAdEMAMixState": ("ScaleBySimplifiedAdEMAMixState",),
    "ScaleByStddevState": ("ScaleByRStdDevState", "ScaleByRStdDevWithCountState"),
    "ScaleByYogiState": ("ScaleByAdamState",),
    "TraceState": ("TraceState",),
}

# Optax has no state for a learning rate that is a number.
WITHOUT_PARTNER = {"ProximalDecayState", "ScaleByLearningRateState"}

# Fields with different names in the states of Optax and eqopt.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "ScaleByAdanState": {"t": "count", "g": "previous_gradient"},
    "ScaleByAdemamixState": {"count_m2": "count"},
    "ScaleBySimplifiedAdEMAMixState": {"t": "count", "m": "mu", "n": "nu"},
}

_THEIRS = {name for names in PARTNERS.values() for name in names}


# Types are not checked, because these are called for each node.


def is_ours(node):
    return isinstance(node, eqx.Module) and type(node).__name__ in PARTNERS


def is_theirs(node):
    return hasattr(node, "_fields") and type(node).__name__ in _THEIRS


def is_injection(node):
    """Whether it is the state of `optax.inject_hyperparams`."""
    fields = getattr(node, "_fields", ())
    return "hyperparams" in fields and "inner_state" in fields


def their_fields(node: Any) -> dict[str, str]:
    """The fields of a state of Optax, with their names in eqopt."""
    renamed = RENAMED.get(type(node).__name__, {})
    return {name: renamed.get(name, name) for name in node._fields}


def nodes_of(state: Any, is_node: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """The states in a state that hold arrays, with their key paths, in order.

    The fields that `optax.inject_hyperparams` adds are omitted.
    """
    found = []
    map_nodes(lambda path, node: found.append((path, node)), state, is_node)
    # JAX sorts the keys of a dictionary, but not the keys of an `OrderedDict`.
    found.sort(key=lambda item: [_rank(entry) for entry in item[0]])
    return [(jtu.keystr(path), node) for path, node in found]


def map_nodes(
    fn: Callable[[tuple, Any], Any],
    state: Any,
    is_node: Callable[[Any], bool],
    count: Callable[[], Any] = lambda: 0,
    before: tuple = (),
) -> Any:
    """`state` with `fn` applied to each state in it that holds arrays.

    The counts of `optax.inject_hyperparams` become the result of `count`.
    """

    def visit(path: tuple, node: Any) -> Any:
        path = (*before, *path)
        if is_injection(node):
            path = (*path, jtu.GetAttrKey("inner_state"))
            inner = map_nodes(fn, node.inner_state, is_node, count, path)
            return _counted(node, count())._replace(inner_state=inner)
        return fn(path, node) if jtu.tree_leaves(node) else node

    stop = lambda x: is_node(x) or is_injection(x)
    return jtu.tree_map_with_path(visit, state, is_leaf=stop)


def _rank(entry: Any) -> str:
    if isinstance(entry, jtu.SequenceKey):
        return f"{entry.idx:09}"
    return str(entry.key) if isinstance(entry, jtu.DictKey) else ""


def _counted(injection: Any, count: Any) -> Any:
    """A state of `optax.inject_hyperparams` and of its schedules after `count` steps."""
    states = {
        name: state._replace(count=jnp.array(count))
        if getattr(state, "_fields", ()) == ("count",)
        else state
        for name, state in getattr(injection, "hyperparams_states", {}).items()
    }
    changed = {"count": jnp.array(count), "hyperparams_states": states}
    return injection._replace(
        **{name: changed[name] for name in injection._fields if name in changed}
    )
