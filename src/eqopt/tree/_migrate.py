"""The state of an optimizer for another one, in the middle of a run."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import listed, type_name
from .._trees.sharding import in_full, moved_like, on_all_devices, on_device, unsharded
from .._trees.stacked import is_stacks, with_stacks, without_stacks
from .._trees.stored import is_stored, standard_promotion
from .._types import Params, State
from ..numerics._numerics import at_least_float32
from ._search import _name, did_you_mean
from ._slots import Part, aligned, parts_of, without_padding


# Classes of states and their names, names of fields such as "ScaleByAdamState.mu", and
# key paths.
Drop: TypeAlias = str | type | Sequence[str | type]

# For numbers of parts of the new state, the part of the old state to take.
Pairs: TypeAlias = dict[int, Part]
New: TypeAlias = Mapping[int, Part]
Old: TypeAlias = Sequence[Part]

_SHOWN = 8  # entries for `drop` in an error
ROOT = "(the root)"


class MigratedPart(NamedTuple):
    """A part of the new state.

    **Attributes:**

    - `path`: its key path in the new state; `""` for the whole state.
    - `name`: the name of its class; `"array"` for an array outside any class.
    - `taken_from`: the key path of the part of the old state that provides its values;
        `None` if all are initialised.
    - `initialised`: if it is taken, the key paths in the new state of the values that
        the old part does not have.
    """

    path: str
    name: str
    taken_from: str | None
    initialised: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.taken_from is None:
            return "initialised"
        rest = f", except {listed([*self.initialised])}" if self.initialised else ""
        return f"taken from {self.taken_from or ROOT}{rest}"


@dataclasses.dataclass(frozen=True)
class MigrationPlan:
    """The result of [`eqopt.tree.migration_plan`][]. `print` shows it as a table.

    **Attributes:**

    - `parts`: an [`eqopt.tree.MigratedPart`][] for each part of the new state that has
        values, a wrapper before its inner state.
    - `dropped`: the values of the old state that are omitted: pairs of a key path and
        the name of the class there.
    """

    parts: tuple[MigratedPart, ...]
    dropped: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        rows = [("new state", "class", "values")]
        rows += [(part.path or ROOT, part.name, str(part)) for part in self.parts]
        if self.dropped:
            rows += [("", "", ""), ("old state", "class", "values")]
        rows += [(path or ROOT, name, "dropped") for path, name in self.dropped]
        return aligned(rows)


class Migration(NamedTuple):
    """The plan, and for each key path of a value of the new state, the old key path."""

    plan: MigrationPlan
    sources: Mapping[tuple, tuple]


def planned(
    new_state: State, old_state: State, take: Mapping[str, str | None], drop: Drop
) -> Migration:
    """The migration between two states, whose arrays may be abstract.

    **Raises:**

    A `ValueError` in the cases of [`eqopt.tree.migrate`][].
    """
    everything = parts_of(old_state)
    dropped = _dropped(everything, drop)
    old = [part.without(dropped) for part in everything]
    new = parts_of(new_state)
    pairs = matched(new, [part for part in old if part.values], take)
    rows, sources = [], {}
    for i, part in enumerate(new):
        place = jtu.keystr(part.path)
        if i not in pairs:
            rows.append(MigratedPart(place, part.name, None))
            continue
        other = pairs[i]
        own = {path: (*other.path, *path[len(part.path) :]) for path in part.values}
        taken = {path: there for path, there in own.items() if there in other.values}
        rest = tuple(jtu.keystr(path) for path in own if path not in taken)
        sources |= taken
        rows.append(MigratedPart(place, part.name, jtu.keystr(other.path), rest))
    _check_types(new, old, sources)
    used = set(sources.values())
    _check_nothing_left(old, [part.without(used) for part in old])
    gone = [part.without(part.values.keys() - dropped.keys()) for part in everything]
    plan = MigrationPlan(tuple(rows), tuple(_summary(everything, gone)))
    return Migration(plan, sources)


def _dropped(old: Sequence[Part], drop: Drop) -> dict[tuple, Any]:
    """The values of the old state that `drop` names."""
    entries = [drop] if isinstance(drop, str | type) else drop
    values = [(part, path, x) for part in old for path, x in part.values.items()]
    found = {}
    for entry in entries:
        name = entry.__name__ if isinstance(entry, type) else entry
        here = {path: x for part, path, x in values if name in _names(part, path)}
        if not here:
            names = [x for part in old for x in (part.name, jtu.keystr(part.path)) if x]
            slots = {_slot(part, path) for part, path, _ in values}
            names = sorted(x for x in slots if x.endswith(f".{name}")) or names
            raise InputError(
                f"`drop` has {name!r}, but the old state has no such class, field or "
                f"path.{hint(name, names)}"
            )
        found |= here
    return found


def _names(part: Part, path: tuple) -> set[str]:
    """What `drop` may call the value of a part at `path`."""
    around = {jtu.keystr(path[:i]) for i in range(1, len(path) + 1)}
    return around | {part.name, _slot(part, path)}


def _slot(part: Part, path: tuple) -> str:
    rest = path[len(part.path) :]
    return f"{part.name}.{_name(rest[0])}" if rest else part.name


def _summary(old: Sequence[Part], some: Sequence[Part]) -> list[tuple[str, str]]:
    """Key paths and classes of some values of a state, for whole parts if possible."""
    rows = []
    for part, fewer in zip(old, some, strict=True):
        is_whole = bool(part.values) and len(part.values) == len(fewer.values)
        paths = [part.path] if is_whole else [*fewer.values]
        rows += [(jtu.keystr(path), part.name) for path in paths]
    return rows


def _check_nothing_left(old: Sequence[Part], left: Sequence[Part]) -> None:
    """Raises an error if values of the old state are neither taken nor dropped."""
    lost = [f"{name} at `{path or ROOT}`" for path, name in _summary(old, left)]
    if lost:
        raise InputError(
            "the new optimizer has no place for these values of the old state: "
            f"{listed(lost, quote='')}. To omit them, pass `{_advice(old, left)}`. To "
            "move them, pass `take`."
        )


def _advice(old: Sequence[Part], left: Sequence[Part]) -> str:
    """The argument `drop` that names the values in `left`, and nothing else of `old`."""
    kept: set[str] = set()
    for part, rest in zip(old, left, strict=True):
        for path in part.values.keys() - rest.values.keys():
            kept |= _names(part, path)
    found: dict[str, None] = {}
    for part in left:
        for path in part.values:
            first = max(len(part.path), 1)  # not the root, which has no name
            around = [path[:i] for i in range(first, len(path) + 1)]
            names = [part.name, _slot(part, path), *map(jtu.keystr, around)]
            found[next(name for name in names if name not in kept)] = None
    shown = [*map(repr, found)][:_SHOWN]
    return f"drop=[{', '.join(shown + ['...'] * (len(found) > _SHOWN))}]"


def _check_types(new, old, sources) -> None:
    """Raises an error if values have other shapes or dtypes than the new state."""
    types = lambda parts: {p: _type(x) for y in parts for p, x in y.values.items()}
    here, there = types(new), types(old)
    misfits = {p: other for p, other in sources.items() if here[p] != there[other]}
    if misfits:
        path, other = next(iter(misfits.items()))
        places = {*misfits.values()}
        some = [part.without(part.values.keys() - places) for part in old]
        more = f", and {len(misfits) - 1} more differ" if len(misfits) > 1 else ""
        raise InputError(
            f"the old state has {type_name(*there[other])} at `{jtu.keystr(other)}`, "
            f"but the new one has {type_name(*here[path])} at `{jtu.keystr(path)}`{more}"
            ". Pass the old model and dtypes, or initialise what differs: "
            f"`{_advice(old, some)}`."
        )


def _type(x: Any) -> tuple[Any, tuple[int, ...]]:
    """The dtype and shape of a value of a state."""
    dtype = getattr(x, "dtype", type(x))
    if not isinstance(dtype, type) and not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # of NumPy's arrays
    return dtype, np.shape(x)


def matched(
    new: Sequence[Part], old: Sequence[Part], take: Mapping[str, str | None]
) -> Pairs:
    """The part of `old` for each part of `new` that has one.

    `take`: for key paths in the new state, the key path in the old state.

    **Raises:**

    A `ValueError` if a part has several candidates, or if a path of `take` is wrong.
    """
    pairs: Pairs = {}
    free = dict(enumerate(new))
    # Inner paths first, so that they are exceptions from outer ones.
    for path, source in sorted(take.items(), key=lambda item: -len(item[0])):
        start = _place(path, "new", new)
        here = {i: p for i, p in free.items() if _is_below(p.path, start)}
        free = {i: p for i, p in free.items() if i not in here}
        if source is None:
            continue
        other = _place(source, "old", old)
        there = [part for part in old if _is_below(part.path, other)]
        found = _pairs(here, there, (len(start), len(other)))
        if not found:
            raise InputError(
                f"`take` has {path!r}: {source!r}, but these have no class in common: "
                f"{_kinds(here.values())} in the new state, and {_kinds(there)} in the "
                f"old one. To initialise: `take={{{path!r}: None}}`."
            )
        pairs |= found
    used = {part.path for part in pairs.values()}
    return pairs | _pairs(free, old, used=used)


def _pairs(new, old, starts=(0, 0), used: Set[tuple] = frozenset()) -> Pairs:
    """Pairs by class and labels, then by class among the rest of both.

    `starts` are the numbers of keys of the two paths below which all parts are. Parts
    with a path in `used` are taken already. They are only taken again for the same
    labels: a group whose parameters are now in two groups.
    """
    keys = [lambda part, n=n: (part.key, part.labels(n)) for n in starts]
    labelled = [p for p in old if p.path not in used or p.labels(starts[1])]
    pairs = _by_key(new, labelled, *keys)
    taken = used | {part.path for part in pairs.values()}
    rest = {i: part for i, part in new.items() if i not in pairs}
    free = [part for part in old if part.path not in taken]
    of_class = lambda part: part.key
    return pairs | _by_key(rest, free, of_class, of_class)


def _by_key(new: New, old: Old, new_key: Callable, old_key: Callable) -> Pairs:
    here: dict[Any, Pairs] = {}
    there: dict[Any, list[Part]] = {}
    for i, part in new.items():
        here.setdefault(new_key(part), {})[i] = part
    for part in old:
        there.setdefault(old_key(part), []).append(part)
    pairs: Pairs = {}
    for key in here:
        if key in there:
            pairs |= _paired(here[key], there[key])
    return pairs


def _paired(new: New, old: Old) -> Pairs:
    """Pairs of parts of one class."""
    if len(new) == len(old) == 1:
        return dict.fromkeys(new, old[0])
    # The same places, also if all of them are in one more wrapper or chain.
    by_place = dict(zip(_relative([x.path for x in old]), old, strict=True))
    places = dict(zip(new, _relative([x.path for x in new.values()]), strict=True))
    if {*places.values()} == by_place.keys():
        return {i: by_place[place] for i, place in places.items()}
    paths, others = ([jtu.keystr(x.path) for x in xs] for xs in (new.values(), old))
    raise InputError(
        f"it is unclear which {old[0].name} to take: the new state has {listed(paths)}, "
        f"and the old one {listed(others)}. Say which, `take={{{paths[0]!r}: "
        f"{others[0]!r}}}`, or `None` instead of the second path to initialise."
    )


def _relative(paths: Sequence[tuple]) -> list[tuple]:
    """Key paths without the keys that all of them begin with."""
    same = [len({*keys}) == 1 for keys in zip(*paths, strict=False)]
    start = [*same, False].index(False)
    return [path[start:] for path in paths]


def _is_below(path: tuple, start: tuple) -> bool:
    return path[: len(start)] == start


def _place(path: str, whose: str, parts: Sequence[Part]) -> tuple:
    """The key path of a string; a `ValueError` if there is nothing at this path."""
    starts = (part.path[:i] for part in parts for i in range(len(part.path) + 1))
    places = {jtu.keystr(start): start for start in starts}
    if path not in places:
        paths = [jtu.keystr(part.path) for part in parts]
        raise InputError(
            f"`take` has the path {path!r}, but the {whose} state has no part "
            f"there.{hint(path, paths)}"
        )
    return places[path]


def hint(given: str, names: Sequence[str]) -> str:
    """The names that are similar to the given one, or all if none is."""
    names = [*dict.fromkeys(names)]
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    return did_you_mean(close) or f" It has {listed([x or ROOT for x in names])}."


def _kinds(parts: Iterable[Part]) -> str:
    return ", ".join(dict.fromkeys(part.name for part in parts)) or "nothing"


#
# The migration of values
#


def migrate(
    new_opt: Any,
    old_state: State,
    model: Params,
    *,
    take: Mapping[str, str | None] = {},
    drop: Drop = (),
) -> State:
    """The state with which `new_opt` continues a run that another optimizer began.

    Use it to add clipping or [`eqopt.SkipStep`][], to start an average, to go from Adam
    to AdamW, or to store the state in 8 bits, without losing the moments.

    !!! example

        ```python
        old_opt = eqopt.Adam(1e-3)
        ...
        new_opt = eqopt.ParamEMA(eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(1e-4)))
        state = eqopt.tree.migrate(new_opt, state, model)
        ```

    The states inside a state, such as `ScaleByAdamState`, are matched by their class,
    and if there are several of a class, by the labels of groups and the names of parts
    around them. Positions in a chain count only if both states have a class at the same
    positions, relative to each other. Values that only the new state has are initialised:
    an average starts at the parameters, and its count at zero. Counts that both states
    have continue, also the counts of schedules. Hyperparameters come from `new_opt`.

    Stored arrays of [`eqopt.StoreState`][] are loaded or encoded as `new_opt` requires.
    An array that is stored in the same form keeps its bits. If `new_opt.init` places
    arrays on specific devices, the values are moved there, also inside `jit`. What
    [`eqopt.ZeRO1`][] and [`eqopt.DistributeMatrices`][] have for one number of devices
    becomes what `new_opt` has, also without these wrappers.

    All arrays are copies, so both states can be donated, and `old_state` stays as it
    is. To move them without copies, donate the old state:

    !!! example

        ```python
        move = lambda model, state: eqopt.tree.migrate(new_opt, state, model)
        state = eqx.filter_jit(move, donate="all-except-first")(model, state)
        ```

    **Arguments:**

    - `new_opt`: the optimizer that continues the run.
    - `old_state`: the state that `step` of the old optimizer returned, or one that was
        loaded from a checkpoint. Its arrays may be NumPy arrays.
    - `model`: the parameters as they are now.
    - `take`: for key paths in the new state, the key path in the old state to take the
        values from, for this state and all states inside it. `""` is the whole state.
        `None` initialises. Several paths may take from the same one: the new groups
        of a [`eqopt.Partition`][] take the moments of their parameters from one group.
    - `drop`: the values of the old state to omit, one entry or several: a class of
        states such as `eqopt.ParamEMAState`, or its name; a field such as
        `"ScaleByAdamState.mu"`; or a key path, for everything at or below it. If
        `new_opt` has a place for a dropped value, it is initialised.

    **Returns:**

    A state with the structure, shapes and dtypes of `new_opt.init(model)`.

    **Raises:**

    A `ValueError` that names key paths if values of the old state would be lost, if
    several parts could be taken, if a shape or dtype does not fit, or if an entry of
    `take` or `drop` matches nothing.
    """
    made = new_opt.init(model)
    whole = _unpadded(made)
    new, old = without_stacks(whole), without_stacks(_unpadded(old_state))
    sources = planned(new, old, take, drop).sources
    found = dict(_leaves(old))
    was_divided, is_divided = _divided(old_state), _divided(made)

    def value(path, x):
        source = sources.get(path)
        if source is None:
            return x
        y = found[source]
        if was_divided(source) and not is_divided(path):
            y = jtu.tree_map(in_full, y)  # XLA would leave it divided inside `jit`
        return _value(x, y)

    values = [value(path, x) for path, x in _leaves(new)]
    moved = jtu.tree_structure(new, is_leaf=is_stored).unflatten(values)
    here = jtu.tree_map(_placed, moved, new)  # on the devices of the new arrays
    padded = jtu.tree_map(_placed, with_stacks(whole, here), made)
    return on_all_devices(jtu.tree_map(_in_shards, padded, made), model)


def migration_plan(
    new_opt: Any,
    old_state: State,
    model: Params,
    *,
    take: Mapping[str, str | None] = {},
    drop: Drop = (),
) -> MigrationPlan:
    """What [`eqopt.tree.migrate`][] takes, initialises and drops, as a table.

    It needs no arrays: `old_state` and `model` may come from `eqx.filter_eval_shape`.

    !!! example

        ```python
        new_opt = eqopt.ParamEMA(eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(1e-4)))
        print(eqopt.tree.migration_plan(new_opt, state, model))
        # new state           class                     values
        # (the root)          ParamEMAState             initialised
        # .inner_state[1][0]  ScaleByAdamState          taken from [0]
        # .inner_state[1][2]  ScaleByLearningRateState  taken from [1]
        ```

    **Arguments:**

    - All: see [`eqopt.tree.migrate`][].

    **Returns:**

    An [`eqopt.tree.MigrationPlan`][]; `print` it, or use its `parts` and `dropped`.

    **Raises:**

    The errors of `migrate`.
    """
    new = eqx.filter_eval_shape(new_opt.init, model)
    own = lambda state: without_stacks(without_padding(state))
    return planned(own(new), own(old_state), take, drop).plan


def _leaves(state: State) -> list[tuple[tuple, Any]]:
    return jtu.tree_leaves_with_path(state, is_leaf=is_stored)


def _unpadded(state: State) -> State:
    """`state` without the padding of `eqopt.ZeRO1`, with the same structure."""
    own = lambda x, y: _cut(x, np.shape(y)) if np.shape(x) != np.shape(y) else x
    return jtu.tree_map(own, state, without_padding(state))


def _cut(x: Any, shape: tuple[int, ...]) -> Any:
    return unsharded(on_device(x))[tuple(map(slice, shape))]


def _value(new: Any, old: Any) -> Any:
    """`old`, a value of the old state, in the form of `new`."""
    if _forms(new) == _forms(old):
        return jtu.tree_map(_copied, new, old)
    if not (is_stored(new) or is_stored(old)):
        return _copied(new, old)
    with standard_promotion():
        full = old.load().astype(old.dtype) if is_stored(old) else jnp.asarray(old)
        if is_stored(new):
            return new.store(at_least_float32(full))
    return _copied(new, full)


def _forms(x: Any) -> Any:
    leaves, treedef = jtu.tree_flatten(x)
    return [(np.shape(x), getattr(x, "dtype", None)) for x in leaves], treedef


def _copied(new: Any, old: Any) -> Any:
    """A copy of an array with the type of `new`."""
    if not hasattr(new, "dtype"):
        return old  # a number of Python
    if isinstance(new, np.ndarray | np.generic):
        return np.array(old)[()]
    is_key = jnp.issubdtype(new.dtype, jax.dtypes.prng_key)
    made = jnp.array(old, None if is_key else new.dtype, copy=True)
    if not is_key and jax.typeof(new).weak_type and not jax.typeof(made).weak_type:
        return jnp.full_like(new, 0).at[...].set(made)
    return made


def _divided(state: State) -> Callable[[tuple], bool]:
    """Whether a wrapper divides the arrays at a key path along axes that it chooses."""
    is_own = lambda x: is_stacks(x) or hasattr(type(x), "_without_padding")
    places = [
        (*path, *within)
        for path, x in jtu.tree_leaves_with_path(state, is_leaf=is_own)
        for within in (x.divided_paths() if is_stacks(x) else [()])
        if is_own(x)
    ]
    return lambda path: any(path[: len(place)] == place for place in places)


def _placed(x: Any, like: Any) -> Any:
    """`x` with the padding of `like`, on its devices."""
    if np.shape(x) != np.shape(like):
        pairs = zip(np.shape(x), np.shape(like), strict=True)
        x = jnp.pad(on_device(x), [(0, m - n) for n, m in pairs])
    is_array = isinstance(x, jax.Array) and isinstance(like, jax.Array)
    if not is_array or is_traced(x) or is_traced(like) or not like.committed:
        return x
    return x if x.sharding == like.sharding else jax.device_put(x, like.sharding)


def _in_shards(x: Any, like: Any) -> Any:
    """`x` in the shards of `like` inside `jit`."""
    return moved_like(like, x) if is_traced(like) and x is not like else x
