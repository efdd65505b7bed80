"""Batches of equal matrices."""

from collections.abc import Hashable, Iterator, Sequence


# The number of elements in a batch of updates, by platform: 32 MB in float32, and on a
# TPU 16 MB, so that what an iteration computes stays in its fast memory. A larger matrix
# keeps a device busy on its own, so joining it to others would only take memory.
BATCH = {"default": 2**23, "tpu": 2**22}

# With decompositions: a GPU computes these one after the other in any case, so smaller
# batches only save memory. For a TPU, each of them compiles to a large program.
DECOMPOSED = {"default": 2**22, "tpu": 2**24}


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
