"""Tables of what masks, labels and optimizers do to each parameter."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._matrices import size
from .._trees.leaves import check_parameters, is_leaf, is_parameter, parameters
from .._trees.masks import resolve
from .._trees.routes import Found, Report, known
from .._trees.stored import is_stored, shapes_if_stored
from .._types import Params, PyTree
from ..tree._slots import aligned, bytes_of, owners_of


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
    check_parameters(params)
    values = resolve("groups", groups, params, params)
    leaves, _ = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    rows: list[list[str]] = []
    sums: dict[str, tuple[int, int]] = {}
    for (path, x), value in zip(leaves, values, strict=True):
        if is_parameter(x):
            name, group = jtu.keystr(path) or "(the root)", _group(value)
            rows.append([name, str(tuple(x.shape)), str(x.dtype), group])
            count, elements = sums.get(group, (0, 0))
            sums[group] = count + 1, elements + math.prod(x.shape)
    sizes = ([group, str(n), f"{elements:,}"] for group, (n, elements) in sums.items())
    total = [["group", "arrays", "parameters"], *sizes]
    head = ["path", "shape", "dtype", "group"]
    return f"{aligned(total)}\n\n{aligned([head, *(row for row, _ in _merged(rows))])}"


def _group(value: Any) -> str:
    value = value if isinstance(value, str) else known(value)
    return _span(value) if isinstance(value, np.ndarray) else str(value)


def _span(x: np.ndarray) -> str:
    """The smallest and the largest number of an array, in one line."""
    if not x.size:
        return "-"
    low, high = float(x.min()), float(x.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _merged(rows: list[list[str]]) -> list[tuple[list[str], list[int]]]:
    """Rows whose paths differ only in indices as one, each with their numbers."""
    lines: dict[tuple, list[int]] = {}
    for i, (path, *cells) in enumerate(rows):
        pattern = re.sub(r"\[\d+\]", "[#]", path)
        lines.setdefault((pattern, *cells), []).append(i)
    return [
        ([_merged_path([rows[i][0] for i in some], pattern), *cells], some)
        for (pattern, *cells), some in lines.items()
    ]


def _merged_path(names: list[str], pattern: str) -> str:
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


@dataclasses.dataclass(frozen=True)
class Route:
    """What an optimizer does to one parameter: see [`eqopt.groups.routes`][].

    **Attributes:**

    - `path`, `shape`, `dtype`: of the parameter.
    - `taken_by`: the optimizers and the parts that transform it, such as
        `"Muon > ScaleByMuon"`. Wrappers are omitted, and parts that transform all
        parameters, such as clipping, if others tell parameters apart.
    - `matrices`: the matrices that a method for matrices makes of it: for each shape, a
        tuple of their number, their rows (the outputs) and their columns (the inputs).
        Empty if it is not a matrix.
    - `outputs`, `inputs`: the axes of the rows and of the columns.
    - `weight_decay`: its weight decay, a number or a schedule; `None` if there is none.
    - `factor`: the factor of its learning rate, a number or an array; `None` if there is
        none. It includes factors for the shape of a matrix, such as Muon's. If one of
        several factors is a schedule, it is this schedule.
    - `nbytes`: the bytes of its state.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    taken_by: str
    matrices: tuple[tuple[int, int, int], ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    weight_decay: Any
    factor: Any
    nbytes: int

    def __str__(self) -> str:
        return str(Routes([self]))


class Routes(tuple[Route, ...]):
    """The result of [`eqopt.groups.routes`][]: a tuple with a route per parameter.

    `print` shows it as a table. Parameters that differ only in their indices share a
    line.
    """

    def __str__(self) -> str:
        rows = _merged([[route.path, *_cells(route)] for route in self])
        nbytes = [sum(self[i].nbytes for i in some) for _, some in rows]
        lines = [[*row, f"{n:,}"] for (row, _), n in zip(rows, nbytes, strict=True)]
        return aligned([_HEAD, *lines])


_HEAD = ["path", "shape", "taken by", "matrices", "axes", "decay", "factor", "state"]


def routes(opt: Any, params: Params) -> Routes:
    """What an optimizer does to each parameter: print it before a long run.

    It shows which optimizer takes a parameter, as which matrices, with which weight
    decay and learning-rate factor, and how many bytes its state has. Nothing is
    computed: the arrays may be `jax.ShapeDtypeStruct`s.

    !!! example

        ```python
        opt = eqopt.Muon(0.02, weight_decay=0.1)
        routes = eqopt.groups.routes(opt, model)
        print(routes)
        assert not any(x.matrices for x in routes if "embedding" in x.path)
        ```

    **Arguments:**

    - `opt`: an optimizer, or any other transformation.
    - `params`: the model.

    **Returns:**

    An [`eqopt.groups.Routes`][], a tuple of [`eqopt.groups.Route`][]. A transformation
    of your own counts as one part, which takes all parameters that it is given. Matrices
    are written as `rows x columns`, which means outputs and inputs, and their axes in the
    same order.

    **Raises:**

    The errors of `opt.init`, such as a `ValueError` that names an array for which it is
    not known whether it is a matrix.
    """
    check_parameters(params)
    shapes = shapes_if_stored(parameters(params))
    report = Report(shapes)
    state = eqx.filter_eval_shape(opt.init, params)
    opt._route(report, shapes)
    _leave_out_shared(report.found)
    leaves, _ = jtu.tree_flatten_with_path(shapes, is_leaf=is_leaf)
    nbytes = [0] * len(leaves)
    values = jtu.tree_leaves(state, is_leaf=is_stored)
    for x, owner in zip(values, owners_of(params, state), strict=True):
        if owner is not None:
            nbytes[owner] += sum(map(bytes_of, jax.tree.leaves(x)))
    return Routes(
        _route(jtu.keystr(path), x, found, n)
        for (path, x), found, n in zip(leaves, report.found, nbytes, strict=True)
        if found is not None
    )


def _route(path: str, x: Any, found: Any, nbytes: int) -> Route:
    axes, shape, of_matrices = found.axes, tuple(x.shape), ((), (), ())
    if axes is not None:
        count = size(shape, axes.stack)
        blocks = collections.Counter((m, n) for _, m, n in axes.matrices(shape))
        made = tuple((count * n, *sides) for sides, n in blocks.items())
        of_matrices = made, axes.output, axes.reduction
    named = path or "(the root)", shape, str(x.dtype), _taken_by(found) or "-"
    return Route(*named, *of_matrices, found.weight_decay, found.factor, nbytes)


def _leave_out_shared(found: list[Found | None]) -> None:
    """Forgets parts that take all parameters, if each has a part that does not."""
    parts = [{*x.parts} for x in found if x is not None]
    shared = set.intersection(*parts) if parts else set()
    if all(x - shared for x in parts):
        for x in filter(None, found):
            x.parts = [part for part in x.parts if part not in shared]


def _taken_by(found: Found) -> str:
    """Such as `Hyperball > ScaleByAdam + KeepNorm`."""
    texts = []
    for place, parts in itertools.groupby(found.parts, key=lambda part: part[0]):
        names = dict.fromkeys(name for _, name in parts if name)
        texts.append(" > ".join([*place, *([" + ".join(names)] if names else [])]))
    return " + ".join(texts)


def _cells(route: Route) -> list[str]:
    made = [f"{n} of {rows} x {columns}" for n, rows, columns in route.matrices]
    axes = f"{_axes(route.outputs)} x {_axes(route.inputs)}" if made else "-"
    numbers = map(_number, (route.weight_decay, route.factor))
    return [str(route.shape), route.taken_by, " + ".join(made) or "-", axes, *numbers]


def _axes(axes: tuple[int, ...]) -> str:
    return ",".join(map(str, axes)) or "none"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, np.ndarray):
        return _span(value)
    return f"{value:.4g}" if isinstance(value, int | float) else type(value).__name__
