"""The equivalent states of the two libraries, and the names of their fields."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu


# The states of eqopt, and the corresponding states of Optax. (In Optax, several
# optimizers share Adam's state.)
PARTNERS: Mapping[str, tuple[str, ...]] = {
    "AddDecayedWeightsState": ("WeightDecaySchedule",),
    "ApplyIfFiniteState": ("ApplyIfFiniteState",),
    "ConditionallyMaskState": ("ConditionallyMaskState",),
    "ConditionallyTransformState": ("ConditionallyTransformState",),
    "EMAState": ("EmaState",),
    "MultiStepsState": ("MultiStepsState",),
    "ProximalDecayState": ("ScaleByScheduleState",),
    "ScaleByAMSGradState": ("ScaleByAmsgradState",),
    "ScaleByAdEMAMixState": ("ScaleByAdemamixState",),
    "ScaleByAdadeltaState": ("ScaleByAdaDeltaState",),
    "ScaleByAdamState": ("ScaleByAdamState",),
    "ScaleByAdamaxState": ("ScaleByAdamState",),
    "ScaleByAdanState": ("ScaleByAdanState",),
    "ScaleByBeliefState": ("ScaleByBeliefState",),
    "ScaleByFactoredRMSState": ("FactoredState",),
    "ScaleByLearningRateState": ("ScaleByScheduleState",),
    "ScaleByLionState": ("ScaleByLionState",),
    "ScaleByMuonState": ("MuonState",),
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

# Fields of wrappers, with other states.
_INNER = "inner_state", "inner_opt_state"

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
    """The fields of a state of Optax without inner states, and their names in eqopt."""
    renamed, names = RENAMED.get(type(node).__name__, {}), getattr(node, "_fields", ())
    return {x: renamed.get(x, x) for x in names if x not in _INNER}


def nodes_of(state: Any, is_node: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """The states in a state that hold arrays, with their key paths, in order.

    A wrapper comes before its inner states. The fields that `optax.inject_hyperparams`
    adds are omitted.
    """
    found = []
    map_nodes(lambda *pair: found.append(pair) or pair[1], state, is_node)
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

    The result for a wrapper then gets the results for its inner states. The counts of
    `optax.inject_hyperparams` become the result of `count`.
    """

    def visit(path: tuple, node: Any) -> Any:
        path = (*before, *path)
        if not jtu.tree_leaves(node):
            return node
        new = _counted(node, count()) if is_injection(node) else fn(path, node)
        for name in _INNER:
            if hasattr(node, name):
                within = (*path, jtu.GetAttrKey(name))
                inner = map_nodes(fn, getattr(node, name), is_node, count, within)
                replace = getattr(new, "_replace", partial(dataclasses.replace, new))
                new = replace(**{name: inner})
        return new

    stop = lambda x: is_node(x) or is_injection(x)
    return jtu.tree_map_with_path(visit, state, is_leaf=stop)


def _rank(entry: Any) -> str:
    if isinstance(entry, jtu.SequenceKey):
        return f"{entry.idx:09}"
    # `eqopt.Muon` begins with the matrices, which are a group in `optax.contrib.muon`.
    is_label = isinstance(entry, jtu.DictKey) and entry.key != "muon"
    return str(entry.key) if is_label else ""


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
