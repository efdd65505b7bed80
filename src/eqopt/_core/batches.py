"""Batches of equal matrices."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias


# The number of elements in a batch of updates, by what is computed and by platform: 64 MB
# in float32, and on a TPU 16 MB, so that what an iteration computes stays in its fast
# memory. A larger matrix keeps a device busy on its own, so joining it to others would
# only take memory. A TPU gets few decompositions, because each one compiles to a large
# program. A GPU computes QR decompositions one by one, so smaller batches take the
# same time (SOAP on an H200: 111 ms, not 110), and less memory.
Work: TypeAlias = Literal["products", "decompositions", "QR"]
BATCH: dict[Work, dict[str, int]] = {
    "products": {"default": 2**24, "tpu": 2**22},
    "decompositions": {"default": 2**24, "tpu": 2**24},
    "QR": {"default": 2**22, "tpu": 2**24},
}


class Batching(NamedTuple):
    """How equal matrices are computed.

    **Attributes:**

    - `limits`: the number of elements in a batch, by platform.
    - `turns`: the platforms on which a batch waits for the results of the last one.
    - `numbers_wait`: whether the numbers that all batches share wait, too.
    - `results_wait`: whether the readers of its results wait, too.
    - `is_divided`: whether devices divide the matrices of a batch.
    """

    limits: Mapping[str, int]
    turns: frozenset[str] = frozenset()
    numbers_wait: bool = False
    results_wait: bool = True
    is_divided: bool = False


def largest_batch(work: Work) -> int:
    """The number of elements in the largest batch, on any platform."""
    return max(BATCH[work].values())


def batches(
    keys: Sequence[Hashable], elements: Sequence[int], limit: int
) -> Iterator[list[int]]:
    """The indices in each batch: of equal keys, and of at most `limit` elements."""
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    for group in groups.values():
        batch, found = [], 0
        for i in group:
            if batch and found + elements[i] > limit:
                yield batch
                batch, found = [], 0
            batch.append(i)
            found += elements[i]
        yield batch
