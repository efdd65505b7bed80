"""What a fusion reads of its parameters, and what it writes."""

from collections.abc import Iterator
from typing import NamedTuple

from .program import Computation, Instruction, nbytes


_READ_SLICES = {"dynamic-slice", "slice", "gather"}
_UPDATES = {"dynamic-update-slice", "scatter"}


class Access(NamedTuple):
    """The bytes that a kernel moves, as far as these are not its operands and results.

    - `reads`: bytes by the index of an operand. Other operands are read completely.
    - `written`: bytes. `None`: the results.
    """

    reads: dict[int, float]
    written: float | None


def access(computation: Computation) -> Access:
    """What a fusion with this computation reads and writes."""
    return _Inside(computation).access()


class _Inside:
    def __init__(self, computation: Computation):
        self.computation = computation
        self.by_name = {one.name: one for one in computation}
        self.users: dict[str, list[Instruction]] = {}
        for one in computation:
            for name in one.operands:
                self.users.setdefault(name, []).append(one)

    def access(self) -> Access:
        reads = {}
        for one in self.computation:
            if one.kind == "parameter":
                uses = list(self.uses(one.name))
                if uses and all(self.is_of_slices(*use) for use in uses):
                    reads[int(one.literal)] = sum(self.size(user) for user, _ in uses)
        in_place = any(one.kind in _UPDATES for one in self.computation)
        roots = [one for one in self.computation if one.is_root]
        return Access(reads, self.written(roots[0]) if roots and in_place else None)

    def uses(self, name: str) -> Iterator[tuple[Instruction, str]]:
        """The users of a value, also of a value that only has another shape.

        With each, the name under which it uses the value.
        """
        for user in self.users.get(name, []):
            if user.kind == "bitcast":
                yield from self.uses(user.name)
            else:
                yield user, name

    def is_of_slices(self, user: Instruction, name: str) -> bool:
        """Whether it only reads or updates slices of the value."""
        return user.kind in _READ_SLICES | _UPDATES and user.operands[0] == name

    def size(self, one: Instruction) -> float:
        """The bytes of a slice or of an update."""
        if one.kind not in _UPDATES:
            return nbytes(one.type, everywhere=True)
        update = one.operands[1 if one.kind == "dynamic-update-slice" else -1]
        return nbytes(self.by_name[update].type, everywhere=True)

    def written(self, one: Instruction) -> float:
        while one.kind == "bitcast":
            one = self.by_name[one.operands[0]]
        if one.kind == "tuple":
            return sum(self.written(self.by_name[name]) for name in one.operands)
        return self.size(one) if one.kind in _UPDATES else nbytes(one.type)
