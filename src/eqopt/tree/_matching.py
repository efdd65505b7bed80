"""Which part of one state corresponds to which part of another one."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import jax.tree_util as jtu

from .._errors import InputError
from .._trees.leaves import listed
from ._search import did_you_mean
from ._state_parts import Part


# For numbers of parts of the new state, the part of the old state to take.
Pairs = dict[int, Part]


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


ROOT = "(the root)"
