"""The parameters, divided into fragments of similar size."""

import math

from ..._trees.leaves import flatten_updates
from ..._types import Params


def fragments_of(params: Params, count: int) -> list[Params]:
    """Trees like `params`, with `None` at the arrays that other fragments have.

    Fragments without arrays are last.
    """
    if count == 1:
        return [params]
    leaves, treedef = flatten_updates(params)
    sizes = {i: math.prod(x.shape) for i, x in enumerate(leaves) if x is not None}
    totals, owners = [0] * count, {}
    for i in sorted(sizes, key=lambda i: -sizes[i]):  # stable
        owners[i] = smallest = totals.index(min(totals))
        totals[smallest] += sizes[i]
    return [
        treedef.unflatten(
            x if owners.get(i) == number else None for i, x in enumerate(leaves)
        )
        for number in range(count)
    ]
