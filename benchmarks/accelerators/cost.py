"""Counts what a compiled program does on its device, from its text.

An instruction reads its operands from main memory and writes its results to it. Where
memory is the limit, these bytes are its cost. The rules:

- An operand that is given twice, such as X in the product of X and its transpose, is read
    once.
- Arrays outside main memory, whose layout says S(1), are free. Tiles of a TPU count with
    their padding.
- A parameter of a fusion of which only slices are read counts as these slices. If slices
    of it are updated in place, it counts as the update, once read and once written.
- A loop counts as often as it runs, or once if that is unknown.
- A conditional counts as its cheapest branch in `least`, and as its dearest branch in
    everything else.
- `copy-start` and `slice-start`, the prefetches of a TPU, move bytes without a kernel.
- The workspace of a custom call is free. A custom call that is not a matrix product
    counts once: a decomposition moves far more than that.
- Collective operations are omitted: see `benchmarks.scaling`.

Caches are ignored. The L2 cache of a GPU makes some second reads free.
"""

import dataclasses
import re
from collections import Counter

from .inside import Access, access
from .program import ARRAY, Computation, Instruction, first_type, nbytes, parse


_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "add-dependency"),
}
_FREE_TARGETS = {
    *("ConcatBitcast", "AllocateBuffer", "Sharding", "AssumeGatherIndicesInBound"),
}
_COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
}
_SLICES = {"dynamic-slice", "slice", "gather"}
_PRODUCTS = {"dot", "convolution"}
_COPIES = {"copy", "transpose", "reshape"}


@dataclasses.dataclass
class Cost:
    """What a program does.

    **Attributes:**

    - `kernels`: the number of instructions that run.
    - `least`, `most`: the bytes that they move, with the cheapest and with the dearest
        branch of each conditional.
    - `products`: the number of kernels with a matrix product.
    - `copies`, `copied`: kernels that only copy, and the bytes that they move.
    - `unknown_loops`: loops that count once because their length is unknown.
    - `custom`: custom calls that are not matrix products, by target.
    """

    kernels: int = 0
    least: float = 0.0
    most: float = 0.0
    products: int = 0
    copies: int = 0
    copied: float = 0.0
    unknown_loops: int = 0
    custom: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: "Cost", times: int = 1) -> None:
        for field in dataclasses.fields(self):
            if field.name != "custom":
                more = getattr(self, field.name) + times * getattr(other, field.name)
                setattr(self, field.name, more)
        for target, count in other.custom.items():
            self.custom[target] += times * count

    def move(self, moved: float) -> None:
        self.least += moved
        self.most += moved


def cost(text: str) -> Cost:
    """Counts a program, given as `compiled.as_text()`."""
    computations, entry = parse(text)
    return _Counting(computations).of(entry)


class _Counting:
    """Counts computations once each, however often they are called."""

    def __init__(self, computations: dict[str, Computation]):
        self.computations = computations
        self.known: dict[str, Cost] = {}
        self.accesses: dict[str, Access] = {}

    def of(self, name: str) -> Cost:
        if name not in self.known:
            total, computation = Cost(), self.computations[name]
            types = {one.name: one.type for one in computation}
            for one in computation:
                self.count(one, computation, types, total)
            self.known[name] = total
        return self.known[name]

    def count(
        self,
        one: Instruction,
        computation: Computation,
        types: dict[str, str],
        total: Cost,
    ) -> None:
        started = one.kind.removesuffix("-start")
        bodies = [x for x in one.called("(?:to_apply|calls)") if x in self.computations]
        if one.kind in _FREE or one.kind.endswith("-done") or started in _COLLECTIVES:
            return
        if one.kind == "while":
            trips = _trips(
                one, computation, self.computations[one.called("condition")[0]]
            )
            total.add(self.of(one.called("body")[0]), 1 if trips is None else trips)
            total.unknown_loops += trips is None
        elif one.kind == "conditional":
            branches = [self.of(branch) for branch in one.branches]
            dearest = max(branches, key=lambda cost: (cost.most, cost.kernels))
            least = min(branch.least for branch in branches)
            total.add(dataclasses.replace(dearest, least=least))
        elif one.kind in ("call", "async-start") and bodies:
            total.add(self.of(bodies[0]))
        elif one.kind in ("copy-start", "slice-start"):
            total.move(_prefetched(one, types))
        elif one.target not in _FREE_TARGETS:
            self.count_kernel(one, types, total)

    def count_kernel(
        self, one: Instruction, types: dict[str, str], total: Cost
    ) -> None:
        reads, written = self.access(one, types)
        moved = nbytes(one.type) if written is None else written
        read: dict[str, float] = {}
        for i, name in enumerate(one.operands):
            size = nbytes(types.get(name, ""))
            read[name] = max(read.get(name, 0.0), min(size, reads.get(i, size)))
        moved += sum(read.values())
        total.products += self.is_product(one)
        if one.kind == "custom-call" and not self.is_product(one):
            total.custom[one.target] += 1
        if "S(6)" in one.type and not moved:
            return  # a scalar of a TPU
        total.kernels += 1
        total.move(moved)
        if one.kind in _COPIES:
            total.copies += 1
            total.copied += moved

    def access(self, one: Instruction, types: dict[str, str]) -> Access:
        if one.kind == "fusion":
            name = one.called("calls")[0]
            if name not in self.accesses:
                self.accesses[name] = access(self.computations[name])
            return self.accesses[name]
        if one.kind == "dynamic-update-slice":
            return Access({0: 0.0}, nbytes(types[one.operands[1]]))
        if one.kind in _SLICES:
            return Access({0: nbytes(one.type, everywhere=True)}, None)
        if one.kind == "custom-call":
            workspace = r"s8\[[\d,]*\](\{[^}]*\})?"
            return Access({}, nbytes(re.sub(workspace, "", one.type)))
        return Access({}, None)

    def is_product(self, one: Instruction) -> bool:
        if one.kind == "fusion":
            body = self.computations[one.called("calls")[0]]
            return any(part.kind in _PRODUCTS for part in body)
        is_library = "gemm" in one.target or "matmul" in one.target
        return one.kind in _PRODUCTS or (one.kind == "custom-call" and is_library)


def _prefetched(one: Instruction, types: dict[str, str]) -> float:
    """What a prefetch moves: it reads as many bytes as it writes."""
    if one.kind == "copy-start":  # returns (copy, operand, context)
        result, _ = first_type(one.type[1:])
    else:  # returns (operand, slice, context)
        dtype, dims, layout = ARRAY.findall(one.type)[1]
        result = f"{dtype}[{dims}]{{{layout}}}"
    is_read = nbytes(types[one.operands[0]]) > 0
    return nbytes(result, everywhere=True) * is_read + nbytes(result)


def _trips(
    loop: Instruction, computation: Computation, condition: Computation
) -> int | None:
    """How often a loop runs that counts up to a constant; `None` if it does not."""
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    outer = {one.name: one for one in computation}
    inner = {one.name: one for one in condition}
    carry = outer.get(loop.operands[0])
    for one in condition:
        if one.kind != "compare" or "direction=LT" not in one.attributes:
            continue
        bound = inner[one.operands[1]]
        index = re.search(r"index=(\d+)", bound.attributes)
        if bound.kind == "get-tuple-element" and index and carry is not None:
            if carry.kind != "tuple":
                return None
            bound = outer[carry.operands[int(index[1])]]
            while bound.kind in ("copy", "bitcast"):
                bound = outer[bound.operands[0]]
        is_number = re.fullmatch(r"-?\d+", bound.literal)
        return int(bound.literal) if bound.kind == "constant" and is_number else None
    return None
