"""Optax transformations as eqopt transformations, the reverse, and their states."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array

from ..._combinators.masked import extra_of_part
from ..._core import AbstractTransformation, check_real, rounded_like
from ..._errors import InputError, noting
from ..._jax_internals import is_traced
from ..._trees.leaves import (
    ANOTHER_MODEL,
    ONE_MODEL,
    flatten_updates,
    is_inexact,
    listed,
    parameters,
    restrict,
)
from ..._trees.states import check_state
from ..._types import IntegerLike, Params, PyTree, State, Updates
from ...tree import get_all_with_path
from .._parts import (
    INNER,
    checked_count,
    learning_rates,
    map_nodes,
    nodes_of,
    with_rate,
)


class FromOptaxState(eqx.Module):
    """`optax_state`: the state of the Optax transformation."""

    optax_state: State


class FromOptax(AbstractTransformation):
    """An Optax transformation, made by [`eqopt.interop.optax.from_optax`][]."""

    tx: optax.GradientTransformation = eqx.field(static=True)

    def init(self, params: Params) -> FromOptaxState:
        params = parameters(params)
        with _as_optax_needs_it():
            state = self.tx.init(params)
        return FromOptaxState(_unshared(state, params))

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, FromOptaxState]:
        check_state(self, state)
        flatten_updates(updates)
        part = None
        if params is not None:
            part = parameters(restrict(params, updates))
            check_real(updates, part, "params")
        extra = dict(extra_of_part(extra, part, params))
        tx = optax.with_extra_args_support(self.tx)
        with noting(_NOTE, TypeError, ValueError), _as_optax_needs_it():
            new_updates, new = tx.update(updates, state.optax_state, part, **extra)
        return rounded_like(new_updates, updates), FromOptaxState(new)


_NOTE = (
    f"This is an error of the Optax transformation in `from_optax`. {ONE_MODEL} Optax "
    "does not accept `None` for a parameter that was given to `init`: to train only some "
    "parameters, call `init(eqx.filter(model, is_trained))`, or put it inside "
    "`eqopt.SelectiveTransform(opt, freeze_mask=...)`."
)


def from_optax(tx: optax.GradientTransformation) -> AbstractTransformation:
    """An Optax transformation, for code that expects an eqopt transformation.

    !!! example

        ```python
        import optax
        from eqopt.interop.optax import from_optax

        opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), from_optax(optax.adam(1e-3)))
        state = opt.init(model)  # the whole model
        ```

    It accepts whole models: Optax sees only their floating and complex arrays. `tx`
    runs with implicit promotion of dtypes and shapes, which Optax relies on, even if
    JAX is configured to be strict. Extra arguments of `update` are passed to `tx`; a
    `value_fn` is called with the whole model.

    The rest depends on `tx`. Optax does not guarantee the following laws of eqopt: the
    state keeps its dtypes if gradients and parameters have different dtypes; nothing is
    NaN in float16; derivatives through steps are finite at zero gradients; the state is
    sharded like the parameters when `init` is compiled. Hyperparameters are not data,
    unless `tx` comes from `optax.inject_hyperparams`: then they are in the state, where
    `eqopt.tree.set(state, learning_rate=1e-4)` changes them.

    Two results are equal, and share compiled functions, if they come from the same
    object `tx`.

    **Arguments:**

    - `tx`: an `optax.GradientTransformation`, with or without extra arguments.

    **Returns:**

    An [`eqopt.AbstractTransformation`][]. Its state has one attribute, `optax_state`,
    which is the state of `tx`.
    """
    return FromOptax(tx)


@contextlib.contextmanager
def _as_optax_needs_it():
    """Implicit promotion, whatever the configuration of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _unshared(state: PyTree, params: PyTree) -> PyTree:
    """`state`, with copies of arrays that it shares with `params` or contains twice.

    Some transformations keep the initial parameters, which may be donated.
    """
    seen = {id(x) for x in jax.tree.leaves(params)}

    def own(x: Any) -> Any:
        if eqx.is_array(x) and id(x) in seen:
            return jnp.array(x, copy=True)
        seen.add(id(x))
        return x

    return jax.tree.map(own, state)


def to_optax(opt: AbstractTransformation) -> optax.GradientTransformationExtraArgs:
    """An eqopt optimizer or transformation, for code that expects Optax.

    !!! example

        ```python
        import optax
        from eqopt.interop.optax import to_optax

        tx = optax.chain(optax.clip(1.0), to_optax(eqopt.Muon(1e-2)))
        ```

    You can use it in `optax.chain`, `optax.masked`, `optax.partition` and other
    wrappers of Optax, in Flax's `TrainState` and in `nnx.Optimizer`. Extra arguments of
    `update` are passed to `opt`. As in Optax, names that no part of it reads do nothing.

    Optax adds an update to every array. So arrays that are not parameters in eqopt,
    such as integer arrays, get updates of zero. Python floats are parameters, as in
    Optax.

    The hyperparameters are fixed at their current values in `opt`. Functions that are
    compiled with the transformation contain these values, even if they are arrays.

    Two results are equal, and share compiled functions, if they come from equal
    optimizers. But a result equals only itself if `opt` has no hash, because it contains
    an array, a list or a dictionary, such as a mask.

    **Arguments:**

    - `opt`: any [`eqopt.AbstractTransformation`][].

    **Returns:**

    An `optax.GradientTransformationExtraArgs` with the same state as `opt`. From this
    state and the parameters, `opt.eval_params` returns the parameters to evaluate with.
    """
    try:
        key, hashed = opt, hash(opt)
    except TypeError:  # an array has no hash
        key, hashed = object(), 0
    init, update = (_FunctionOf(fn, opt, hashed, key) for fn in (_init, _update))
    return optax.GradientTransformationExtraArgs(init, update)


@dataclasses.dataclass(frozen=True)
class _FunctionOf:
    """Calls `fn` with `opt` as its first argument.

    It equals others with the same `fn` and an equal `key`. A compiled step of Flax's
    `TrainState` needs the hash in each call, so it is stored: for Muon, it takes 90 us.
    """

    fn: Callable[..., Any]
    opt: AbstractTransformation = dataclasses.field(compare=False)
    hashed: int = dataclasses.field(repr=False)
    key: Any = dataclasses.field(repr=False, hash=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self.opt, *args, **kwargs)


def _init(opt: AbstractTransformation, params: Params) -> State:
    return opt.init(parameters(_floats_as_arrays(params)))


def _update(opt, updates, state, params=None, **extra):
    given, params = _floats_as_arrays(updates), _floats_as_arrays(params)
    if type(params).__module__.startswith("flax.nnx"):
        state = _as_made(opt, state, params)
    updates, state = opt.update(parameters(given), state, params, **extra)
    return eqx.combine(updates, _zeros_for_others(given, params)), state


def _as_made(opt: AbstractTransformation, state: State, params: Params) -> State:
    """`state` with the containers that `init` makes.

    `nnx.Optimizer` replaces tuples and modules inside a tree of parameters by its own
    mappings, which sort their keys.
    """
    named = lambda path: jtu.keystr(path, simple=True, separator="/")
    made, treedef = jtu.tree_flatten_with_path(eqx.filter_eval_shape(opt.init, params))
    leaves = {named(path): x for path, x in jtu.tree_leaves_with_path(state)}
    names = [named(path) for path, _ in made]
    return treedef.unflatten(map(leaves.get, names)) if {*names} == {*leaves} else state


def _floats_as_arrays(tree: PyTree) -> PyTree:
    is_number = lambda x: isinstance(x, float | complex | np.inexact)
    return jax.tree.map(lambda x: jnp.asarray(x) if is_number(x) else x, tree)


def _zeros_for_others(updates: PyTree, params: PyTree | None) -> PyTree:
    """Zeros instead of updates of integers and JAX's `float0`."""
    others = eqx.filter(updates, is_inexact, inverse=True)
    if not jax.tree.leaves(others):
        return others

    def zeros(g: Any, p: Any) -> Array | None:
        dtype = jnp.result_type(p)
        # JAX's gradient of an integer cannot be added to anything.
        dtype = bool if dtype == jax.dtypes.float0 else dtype
        return None if is_inexact(g) else jnp.zeros(jnp.shape(g), dtype)

    return jax.tree.map(zeros, updates, updates if params is None else params)


#
# Continues a training run of one library with the other
#


def state_from_optax(
    opt: AbstractTransformation,
    optax_state: Any,
    params: Params,
    *,
    count: IntegerLike | None = None,
) -> State:
    """The state with which `opt` continues a training run that Optax started.

    !!! example

        ```python
        from eqopt.interop.optax import state_from_optax

        opt = eqopt.AdamW(1e-3)
        state = state_from_optax(opt, optax_state, model)
        model, state = opt.step(grads, state, model)
        ```

    Every array keeps its bits, and is not copied, except for the counts. The following
    steps equal Optax's up to rounding, except for Adan. In float32, the difference is
    smallest if Optax's optimizer comes from `optax.inject_hyperparams`.

    The hyperparameters come from `opt`, even if `optax_state` is a state of
    `optax.inject_hyperparams`. Read them from `optax_state` and pass them to `opt`.

    The following states can be converted, inside chains, masks and partitions: SGD with
    momentum, Adam, AdamW, NAdam, NAdamW, Adamax, AMSGrad, AdaBelief, Yogi, RAdam, Lion,
    LAMB, LARS, Adan, AdEMAMix, NovoGrad, RMSprop, Adagrad, Adadelta, Adafactor, Muon,
    [`eqopt.EMA`][] and schedules; and the wrappers [`eqopt.MultiSteps`][],
    [`eqopt.ApplyIfFinite`][], [`eqopt.ConditionallyMask`][] and
    [`eqopt.ConditionallyTransform`][] around them. Others cannot, such as Prodigy,
    schedule-free and Lookahead: continue these with [`eqopt.interop.optax.from_optax`][].

    The parts of `opt` must have the same order as in the Optax transformation. If Muon
    has another learning rate, decay or `b1` for its Adam in Optax, pass it as `fallback`:
    `eqopt.Muon(eta, fallback=eqopt.NAdam(eta, b1=0.8))`.

    !!! warning

        A state does not identify its optimizer completely. In Optax, Adam, Adamax,
        RAdam and Yogi have states of the same type, so confusing them raises no error.

        The next steps of [`eqopt.Adan`][] differ from Optax's: it weights differences
        of gradients by `b2`, like the authors' code, while Optax uses `1 - b2`. The
        converted second moment forgets Optax's weights at the rate of `b3`.

    **Arguments:**

    - `opt`: the optimizer.
    - `optax_state`: the state that `init` or `update` of the Optax transformation
        returned.
    - `params`: the model, or the parameters that were passed to Optax.
    - `count`: the number of steps taken so far, an integer of at least 0, for parts of
        `opt` that count steps if Optax does not. Defaults to the count of the other
        parts, or to 0 if there is none, as for `optax.sgd` without a schedule.

    **Returns:**

    The state, as if `opt` had trained from the first step.

    **Raises:**

    A `ValueError` that names key paths if `optax_state` belongs to another optimizer or
    model, if its arrays have other shapes or dtypes than the state of `opt`, or if a
    count is needed and its counts differ.
    """
    template = opt.init(params)
    if isinstance(opt, FromOptax):
        expected = template.optax_state
        return FromOptaxState(taken(expected, optax_state, ".optax_state", ""))
    counted = lambda: count_of(count, optax_state)
    rates = learning_rates(opt)
    ours = _sorted_nodes(template, is_ours)
    theirs = _sorted_nodes(optax_state, is_theirs)
    new = {
        path: _converted(node, other, path, their_path, counted)
        for path, node, their_path, other in _paired(ours, theirs)
    }

    def found(path: tuple, node: Any) -> Any:
        is_rate = type(node).__name__ == "ScaleByLearningRateState"
        made = new[jtu.keystr(path)]
        return with_rate(made, next(rates, None)) if is_rate else made

    return map_nodes(found, template, is_ours)


def state_to_optax(
    tx: optax.GradientTransformation,
    state: State,
    params: Params,
    *,
    count: IntegerLike | None = None,
) -> Any:
    """The state with which an Optax transformation continues a training run of eqopt.

    It is the inverse of [`eqopt.interop.optax.state_from_optax`][], which lists the
    supported states. After a round trip, every array has the same bits. Optax's
    `MultiSteps` has no weights: if the gradients have them, convert after a whole step.

    **Arguments:**

    - `tx`: the Optax transformation. If it comes from `optax.inject_hyperparams`, its
        hyperparameters get their initial values, or the current values of its
        schedules; stateful schedules restart.
    - `state`: the state that `init`, `update` or `step` of an eqopt optimizer returned.
    - `params`: the model, or the parameters that are passed to Optax.
    - `count`: the number of steps taken so far, for `optax.inject_hyperparams`.
        Defaults to the count in `state`.

    **Returns:**

    The state of `tx`.

    **Raises:**

    A `ValueError` that names key paths, in the same cases as for its inverse.
    """
    template = FromOptax(tx).init(params).optax_state
    if isinstance(state, FromOptaxState):
        return taken(template, state.optax_state, "", ".optax_state")
    ours, theirs = _sorted_nodes(state, is_ours), _sorted_nodes(template, is_theirs)
    new = {
        their_path: _inverted(node, other, path, their_path)
        for path, node, their_path, other in _paired(ours, theirs)
        if other is not None
    }
    counted = lambda: count_of(count, state)

    def found(path: tuple, node: Any) -> Any:
        if is_injection(node):
            return _counted(node, counted())
        made = new.get(jtu.keystr(path))
        return node._replace(count=jnp.array(counted())) if made is None else made

    return map_nodes(found, template, is_theirs)


def _paired(ours: list, theirs: list) -> Iterator[tuple[str, Any, str, Any]]:
    """The states of both libraries that belong together, `None` for a missing one."""
    mine, others = ([type(node).__name__ for _, node in x] for x in (ours, theirs))
    end = len(mine), len(others)
    fitting = {end}  # each $(i, j)$ for which `ours[i:]` and `theirs[j:]` fit
    for i in reversed(range(len(mine))):
        for j in reversed(range(len(others) + 1)):
            if not fitting.isdisjoint(_choices(mine, others, i, j)):
                fitting.add((i, j))
    i = j = 0
    while (i, j) != end:
        choices = _choices(mine, others, i, j)
        if not choices:
            raise InputError(
                f"eqopt has {_shown(ours[i:])}, but Optax has {_shown(theirs[j:])}. Both "
                "optimizers must have the same parts in the same order, except for "
                "learning rates, schedules and parts without state. `state_from_optax` "
                "lists the states that can be converted."
            )
        # Without a way to the end, continue up to what does not fit.
        after = next((x for x in choices if x in fitting), choices[0])
        if after[0] > i:
            path, node = ours[i]
            their_path, other = theirs[j] if after[1] > j else ("", None)
            yield path, node, their_path, other
        i, j = after


def _choices(mine: list[str], others: list[str], i: int, j: int):
    """What may come after $(i, j)$, the best choice first."""
    name, kind = (x[n] if n < len(x) else "" for x, n in ((mine, i), (others, j)))
    choices = {
        (i + 1, j + 1): kind in PARTNERS.get(name, ()),
        (i + 1, j): name in WITHOUT_PARTNER,
        # Where eqopt has one schedule, Optax may have one for each group.
        (i, j + 1): kind == "ScaleByScheduleState" and kind in others[j + 1 :],
    }
    return [x for x, is_one in choices.items() if is_one]


def _shown(rest: list) -> str:
    if not rest:
        return "no more states"
    path, node = rest[0]
    is_state = is_ours(node) or is_theirs(node)
    kind = f"a {type(node).__name__}" if is_state else "something else"
    return f"{kind} at `{path or _ROOT}`"


_ROOT = "(the root)"


def _converted(ours: Any, other: Any, path: str, their_path: str, counted: Any) -> Any:
    """`ours` with the values of `other`, and a count from elsewhere if it has none."""
    names = {own: name for name, own in their_fields(other).items()}
    values = {}
    for field in dataclasses.fields(ours):
        name = names.get(field.name)
        place = f"{path}.{field.name}"
        if name is not None:
            source = getattr(other, name), place, f"{their_path}.{name}"
            values[field.name] = taken(getattr(ours, field.name), *source)
        elif field.name == "count":
            values["count"] = counted()
        elif field.name == "weight_sum":
            values["weight_sum"] = jnp.asarray(other.mini_step, jnp.float32)
    # Two counts of a state must not share a buffer, which could not be donated twice.
    if "count" in values:
        values["count"] = jnp.array(values["count"])
    return dataclasses.replace(ours, **values)


def _inverted(ours: Any, other: Any, path: str, their_path: str) -> Any:
    """`other` with the values of `ours`."""
    values = {}
    for name, own in their_fields(other).items():
        if hasattr(ours, own):
            source = getattr(ours, own), f"{their_path}.{name}", f"{path}.{own}"
            value = taken(getattr(other, name), *source)
            values[name] = jnp.array(value) if own == "count" else value
    if "acc_grads" in values:  # eqopt clears them in the next step
        clear = lambda x: jnp.where(ours.mini_step == 0, 0, x)
        values["acc_grads"] = jax.tree.map(clear, values["acc_grads"])
    return other._replace(**values)


def taken(expected: PyTree, given: PyTree, path: str, given_path: str) -> PyTree:
    """`given` with the structure of `expected`. Masked-out leaves are in neither.

    `()` in one of them stands for an array that is not used. It may have an array in the
    other one.
    """
    is_unused = lambda x: type(x) is tuple and not x
    leaves, treedef = jtu.tree_flatten_with_path(expected, is_leaf=is_unused)
    given_leaves = jtu.tree_leaves_with_path(given, is_leaf=is_unused)
    here, there = ({jtu.keystr(p): x for p, x in y} for y in (leaves, given_leaves))
    unused = {p for y in (here, there) for p, x in y.items() if is_unused(x)}
    missing = [given_path + p for p in here if p not in {*there, *unused}]
    surplus = [given_path + p for p in there if p not in {*here, *unused}]
    if missing or surplus:
        raise InputError(
            f"The state to convert does not fit the parameters at `{path or _ROOT}`. It "
            f"has no array at {listed(missing) or '-'}, and only it has one at "
            f"{listed(surplus) or '-'}. {ANOTHER_MODEL}"
        )
    used = {p: jnp.asarray(there[p]) for p in here if p not in unused}
    for p, x in used.items():
        found, wanted = (f"{y.dtype}{list(np.shape(y))}" for y in (x, here[p]))
        if found != wanted:
            raise InputError(
                f"The state to convert has {found} at `{given_path + p}`, but the "
                f"optimizer has {wanted} at `{path + p}`. Use its model and dtypes, such "
                "as `mu_dtype=...`."
            )
    typed = {p: _typed_like(here[p], x) for p, x in used.items()}
    return treedef.unflatten((here | typed).values())


def _typed_like(expected: Array, x: Array) -> Array:
    # With another weak type, the second step would be compiled again.
    return jnp.asarray(x, x.dtype) if x.weak_type and not expected.weak_type else x


def count_of(given: Any, state: Any) -> Array:
    """The number of steps taken so far: `given`, or the count in `state`."""
    if given is not None:
        return checked_count(given)
    counts = {
        jtu.keystr(path): x
        for name in _COUNTS
        for path, x in get_all_with_path(state, name, lambda path, x: _is_count(x))
    }
    known = {int(x) for x in counts.values() if not is_traced(x)}
    if len(known) > 1:
        found = ", ".join(f"`{path}` is {int(x)}" for path, x in counts.items())
        problem = f"The counts of the state to convert differ: {found}."
        fix = "Pass `count=...`, the number of steps, for the parts that have none."
        raise InputError(f"{problem} {fix}")
    return jnp.asarray(next(iter(counts.values()), 0), jnp.int32)


_COUNTS = ("count", "t")  # as the fields of states are called


def _is_count(x: Any) -> bool:
    is_array = isinstance(x, jax.Array | np.ndarray)
    return is_array and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer)


#
# The equivalent states of the two libraries, and the names of their fields.
#


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

_THEIRS = {name for names in PARTNERS.values() for name in names}


# Types are not checked, because these are called for each node.


def is_ours(node):
    return isinstance(node, eqx.Module) and type(node).__name__ in PARTNERS


def is_theirs(node):
    is_partner = hasattr(node, "_fields") and type(node).__name__ in _THEIRS
    return is_partner or is_injection(node)


def is_injection(node):
    """Whether it is the state of `optax.inject_hyperparams`."""
    fields = getattr(node, "_fields", ())
    return "hyperparams" in fields and "inner_state" in fields


def their_fields(node: Any) -> dict[str, str]:
    """The fields of a state of Optax without inner states, and their names in eqopt."""
    renamed, names = RENAMED.get(type(node).__name__, {}), getattr(node, "_fields", ())
    return {x: renamed.get(x, x) for x in names if x not in INNER}


def _sorted_nodes(state: Any, is_node: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """The states in a state that hold arrays, except the ones of injections, in order.

    JAX sorts the keys of a dictionary, but not the keys of an `OrderedDict`.
    """
    found = nodes_of(state, is_node)
    found.sort(key=lambda item: [_rank(entry) for entry in item[0]])
    return [(jtu.keystr(p), node) for p, node in found if not is_injection(node)]


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
        for name, state in injection.hyperparams_states.items()
    }
    return injection._replace(count=jnp.array(count), hyperparams_states=states)
