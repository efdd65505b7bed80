import re
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._trees.leaves import check_parameters, is_leaf, is_parameter
from .._trees.masks import resolve
from .._trees.routes import known
from .._types import Params, PyTree
from ..tree._nbytes import aligned


def table(groups: PyTree | Callable[[Params], PyTree], params: Params) -> str:
    """A table of the mask value or label of each parameter, as text.

    Parameters that differ only in their indices, such as the parameters of equal
    layers, share a line, so that the table of a large model stays readable.

    **Arguments:**

    - `groups`: a mask, labels or factors, as a tree like the parameters, a prefix of one
        or a function of the parameters.
    - `params`: the model.

    **Raises:**

    A `ValueError` if `params` has no parameters, or if `groups` does not fit it.
    """
    check_parameters("table", params)
    values = resolve("groups", groups, params, params)
    leaves, _ = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    lines: dict[tuple, list[str]] = {}
    sums: dict[str, tuple[int, int]] = {}
    for (path, x), value in zip(leaves, values, strict=True):
        if is_parameter(x):
            name, group = jtu.keystr(path) or "(the root)", _text(value)
            pattern = re.sub(r"\[\d+\]", "[#]", name)
            key = pattern, str(tuple(x.shape)), str(x.dtype), group
            lines.setdefault(key, []).append(name)
            count, size = sums.get(group, (0, 0))
            sums[group] = count + 1, size + int(np.prod(x.shape))
    total = [
        ["group", "arrays", "parameters"],
        *([group, str(n), f"{size:,}"] for group, (n, size) in sums.items()),
    ]
    rows = [
        ["path", "shape", "dtype", "group"],
        *(
            [_merged(names, pattern), *rest]
            for (pattern, *rest), names in lines.items()
        ),
    ]
    return f"{aligned(total)}\n\n{aligned(rows)}"


def _merged(names: list[str], pattern: str) -> str:
    """One path for several: `.layers[0-11].weight` if only one index differs."""
    if len(names) == 1:
        return names[0]
    indices = np.array([re.findall(r"\[(\d+)\]", name) for name in names], int)
    merged = iter(map(_range, indices.T))
    return f"{re.sub(re.escape('[#]'), lambda _: next(merged), pattern)}"


def _range(column: Any) -> str:
    values = sorted({*column.tolist()})
    if len(values) == 1:
        return f"[{values[0]}]"
    if values == list(range(values[0], values[-1] + 1)):
        return f"[{values[0]}-{values[-1]}]"
    return f"[{','.join(map(str, values))}]"


def _text(value: Any) -> str:
    value = value if isinstance(value, str) else known(value)
    return _span(value) if isinstance(value, np.ndarray) else str(value)


def _span(x: np.ndarray) -> str:
    """The smallest and the largest number of an array, in one line."""
    if not x.size:
        return "-"
    low, high = float(x.min()), float(x.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
