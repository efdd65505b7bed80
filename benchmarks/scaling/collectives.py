"""Counts the communication of a compiled program, from its text."""

import functools
import math
import re
from typing import NamedTuple


# The share of the full array that a device sends, with the usual ring algorithms, as a
# function of the number of participating devices.
SENT = {
    "all-gather": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}

_LINE = re.compile(rf" = (.+?) ({'|'.join(SENT)})(-start)?\((.*)")
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|c64|c128)\[([\d,]*)\]")
_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_WIDTHS = {"pred": 1, "bf16": 2, "c64": 8, "c128": 16}


class Collective(NamedTuple):
    """A collective operation on a group of devices.

    - `kind`: its name, one of `SENT`.
    - `size`: the bytes of its full result; for a reduce-scatter, of its operand.
    - `group`: the number of devices in a group.
    """

    kind: str
    size: int
    group: int

    @property
    def sent(self) -> float:
        """The bytes that one device sends."""
        return SENT[self.kind](self.group) * self.size


def collectives(text: str, with_loops: bool = False) -> list[Collective]:
    """All collective operations in a program, given as `compiled.as_text()`.

    Operations in a loop count once, and `with_loops` as often as it runs, if the program
    says how often. Operations within one device are omitted.
    """
    found, times = [], _times(text) if with_loops else {}
    computation = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation = header[1]
        match = _LINE.search(line)
        if match is None:
            continue
        shapes, kind, is_started, rest = match.groups()
        group = _group(rest)
        if group == 1:
            continue
        sizes = [_bytes(*array) for array in _ARRAY.findall(shapes)]
        # A start operation also returns its operands; the result is the last of the pair.
        # All-reduces do so in newer releases only.
        is_pair = is_started and (kind != "all-reduce" or shapes.startswith("(("))
        size = sum(sizes[len(sizes) // 2 :]) if is_pair else sum(sizes)
        if kind == "reduce-scatter":
            size *= group
        found += [Collective(kind, size, group)] * times.get(computation, 1)
    return found


_START = re.compile(rf"%?([\w.\-]+) = .+? (?:{'|'.join(SENT)})-start\(")
_DONE = re.compile(rf" (?:{'|'.join(SENT)})-done\(%?([\w.\-]+)")


def hidden(text: str) -> int:
    """How many collectives start before a loop of the program and end after it."""
    started: dict[str, int] = {}
    loops = count = 0
    for line in text[text.index("\nENTRY ") :].splitlines():
        if start := _START.search(line):
            started[start[1]] = loops
        elif done := _DONE.search(line):
            count += started[done[1]] < loops
        loops += " while(" in line
    return count


def _times(text: str) -> dict[str, int]:
    """How often each computation runs."""
    callers: dict[str, list[tuple[str, int]]] = {}
    computation = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation = header[1]
        trips = _TRIPS.search(line)
        for name in _CALLED.findall(line):
            callers.setdefault(name, []).append(
                (computation, int(trips[1]) if trips else 1)
            )
    runs = functools.cache(
        lambda name: (
            sum(n * runs(caller) for caller, n in callers[name])
            if name in callers
            else 1
        )
    )
    return {name: runs(name) for name in callers}


def sent(found: list[Collective]) -> dict[str, float]:
    """The bytes that one device sends, by the kind of operation."""
    kinds = {one.kind for one in found}
    return {k: sum(one.sent for one in found if one.kind == k) for k in kinds}


def _bytes(dtype: str, shape: str) -> int:
    width = _WIDTHS.get(dtype) or int(dtype[1:]) // 8
    return width * math.prod(int(n) for n in shape.split(",") if n)


def _group(attributes: str) -> int:
    """The size of a group; XLA has four ways to write the groups."""
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", mesh[2]))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(iota[1])
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(listed[1].split(","))
    if "source_target_pairs" in attributes:
        return 2
    raise ValueError(f"no groups of devices in {attributes[:200]}")
