"""Which part of one state corresponds to which part of another one."""

import difflib
from collections.abc import Container, Iterable, Mapping, Sequence

import jax.tree_util as jtu

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
        found = _Match(len(start), len(other)).pairs(here, there)
        if not found:
            raise ValueError(
                f"migrate: `take` has {path!r}: {source!r}, but these have no class in "
                f"common: the new state has {_kinds(here.values())} there, and the old "
                f"one {_kinds(there)}. Pass paths of the same class, or `None` to "
                f"initialise: `take={{{path!r}: None}}`."
            )
        pairs |= found
    used = {part.path for part in pairs.values()}
    return pairs | _Match().pairs(free, old, used)


class _Match:
    """Finds pairs below two key paths, which have these numbers of keys."""

    def __init__(self, new_start: int = 0, old_start: int = 0):
        self.new_start, self.old_start = new_start, old_start

    def pairs(
        self,
        new: Mapping[int, Part],
        old: Sequence[Part],
        used: Container[tuple] = (),
    ) -> Pairs:
        """Pairs by class and labels, then by class among the rest of both.

        Parts with a path in `used` are taken already. They are only taken again for the
        same labels: a group whose parameters are now in two groups.
        """
        free = [part for part in old if part.path not in used]
        is_candidate = lambda part: part in free or bool(part.labels(self.old_start))
        pairs = self._by_key(new, filter(is_candidate, old), with_labels=True)
        taken = {part.path for part in pairs.values()}
        rest = {i: part for i, part in new.items() if i not in pairs}
        free = [part for part in free if part.path not in taken]
        return pairs | self._by_key(rest, free, with_labels=False)

    def _by_key(
        self, new: Mapping[int, Part], old: Iterable[Part], with_labels: bool
    ) -> Pairs:
        here: dict[tuple, dict[int, Part]] = {}
        there: dict[tuple, list[Part]] = {}
        for i, part in new.items():
            labels = part.labels(self.new_start) if with_labels else ()
            here.setdefault((part.key, labels), {})[i] = part
        for part in old:
            labels = part.labels(self.old_start) if with_labels else ()
            there.setdefault((part.key, labels), []).append(part)
        pairs: Pairs = {}
        for key in here:
            if key in there:
                pairs |= self._paired(here[key], there[key])
        return pairs

    def _paired(self, new: Mapping[int, Part], old: Sequence[Part]) -> Pairs:
        if len(new) == len(old) == 1:
            return dict.fromkeys(new, old[0])
        # The same places, also if all of them are in one more wrapper or chain.
        by_place = dict(zip(_relative([x.path for x in old]), old, strict=True))
        places = dict(zip(new, _relative([x.path for x in new.values()]), strict=True))
        if {*places.values()} == by_place.keys():
            return {i: by_place[place] for i, place in places.items()}
        first = next(iter(new.values()))
        raise ValueError(
            f"migrate: it is unclear which {first.name} to take: the new state has "
            f"{_numbered(new.values())}, and the old state has {_numbered(old)}. Say "
            f"which one, `take={{{jtu.keystr(first.path)!r}: "
            f"{jtu.keystr(old[0].path)!r}}}`, or `None` instead of the second path to "
            "initialise it. A path around several states works for all of them."
        )


def _relative(paths: Sequence[tuple]) -> list[tuple]:
    """Key paths without the keys that all of them begin with."""
    same = [len({*keys}) == 1 for keys in zip(*paths, strict=False)]
    start = [*same, False].index(False)
    return [path[start:] for path in paths]


def _numbered(parts: Iterable[Part]) -> str:
    paths = [jtu.keystr(part.path) or ROOT for part in parts]
    number = "one" if len(paths) == 1 else f"{len(paths)} of them"
    return f"{number} at {listed(paths)}"


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
        raise ValueError(
            f"migrate: `take` has the path {path!r}, but the {whose} state has no part "
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


ROOT = "(the root)"
