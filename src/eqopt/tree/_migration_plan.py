"""What a new optimizer takes from the state of an old one: decided by shapes only."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._trees.leaves import listed, type_name
from .._types import State
from ._nbytes import aligned
from ._search import _name, did_you_mean
from ._slots import Part, parts_of


# Classes of states and their names, names of fields such as "ScaleByAdamState.mu", and
# key paths.
Drop: TypeAlias = str | type | Sequence[str | type]

# For numbers of parts of the new state, the part of the old state to take.
Pairs: TypeAlias = dict[int, Part]

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
    new_state: State,
    old_state: State,
    take: Mapping[str, str | None],
    drop: Drop,
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
    found = {}
    for entry in entries:
        name = entry.__name__ if isinstance(entry, type) else entry
        here = {
            path: x
            for part in old
            for path, x in part.values.items()
            if name in _names(part, path)
        }
        if not here:
            names = [x for part in old for x in (part.name, jtu.keystr(part.path)) if x]
            slots = {_slot(part, path) for part in old for path in part.values}
            names = sorted(x for x in slots if x.endswith(f".{name}")) or names
            raise InputError(
                "migrate",
                f"`drop` has {name!r}, but the old state has no such class, field or "
                f"path.{hint(name, names)}",
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
            "migrate",
            "the new optimizer has no place for these values of the old state: "
            f"{listed(lost, quote='')}. To omit them, pass `{_advice(old, left)}`. To "
            "move them, pass `take`.",
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


def _check_types(
    new: Sequence[Part], old: Sequence[Part], sources: Mapping[tuple, tuple]
) -> None:
    """Raises an error if values have other shapes or dtypes than the new state."""
    here, there = (
        {path: _type(x) for part in parts for path, x in part.values.items()}
        for parts in (new, old)
    )
    misfits = {p: other for p, other in sources.items() if here[p] != there[other]}
    if misfits:
        path, other = next(iter(misfits.items()))
        places = {*misfits.values()}
        some = [part.without(part.values.keys() - places) for part in old]
        more = f", and {len(misfits) - 1} more differ" if len(misfits) > 1 else ""
        raise InputError(
            "migrate",
            f"the old state has {type_name(*there[other])} at `{jtu.keystr(other)}`, "
            f"but the new one has {type_name(*here[path])} at `{jtu.keystr(path)}`{more}"
            ". Pass the old model and dtypes, or initialise what differs: "
            f"`{_advice(old, some)}`.",
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
                "migrate",
                f"`take` has {path!r}: {source!r}, but these have no class in common: "
                f"{_kinds(here.values())} in the new state, and {_kinds(there)} in the "
                f"old one. To initialise: `take={{{path!r}: None}}`.",
            )
        pairs |= found
    used = {part.path for part in pairs.values()}
    return pairs | _pairs(free, old, used=used)


def _pairs(
    new: Mapping[int, Part],
    old: Sequence[Part],
    starts: tuple[int, int] = (0, 0),
    used: Set[tuple] = frozenset(),
) -> Pairs:
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


def _by_key(
    new: Mapping[int, Part],
    old: Sequence[Part],
    new_key: Callable[[Part], Any],
    old_key: Callable[[Part], Any],
) -> Pairs:
    here: dict[Any, dict[int, Part]] = {}
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


def _paired(new: Mapping[int, Part], old: Sequence[Part]) -> Pairs:
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
        "migrate",
        f"it is unclear which {old[0].name} to take: the new state has {listed(paths)}, "
        f"and the old one {listed(others)}. Say which, `take={{{paths[0]!r}: "
        f"{others[0]!r}}}`, or `None` instead of the second path to initialise.",
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
    places = {
        jtu.keystr(part.path[:i]): part.path[:i]
        for part in parts
        for i in range(len(part.path) + 1)
    }
    if path not in places:
        paths = [jtu.keystr(part.path) for part in parts]
        raise InputError(
            "migrate",
            f"`take` has the path {path!r}, but the {whose} state has no part there."
            f"{hint(path, paths)}",
        )
    return places[path]


def hint(given: str, names: Sequence[str]) -> str:
    """The names that are similar to the given one, or all if none is."""
    names = [*dict.fromkeys(names)]
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    return did_you_mean(close) or f" It has {listed([x or ROOT for x in names])}."


def _kinds(parts: Iterable[Part]) -> str:
    return ", ".join(dict.fromkeys(part.name for part in parts)) or "nothing"
