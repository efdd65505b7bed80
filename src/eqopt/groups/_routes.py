import collections
import dataclasses
import re
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._matrices import size
from .._trees.leaves import check_parameters, is_leaf, parameters
from .._trees.routes import Report
from .._trees.stored import is_stored, shapes_if_stored
from .._types import Params
from ..tree._nbytes import aligned, bytes_of
from ..tree._slots import owners_of
from ._table import _merged, _span


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
        return aligned([_HEAD, [self.path, *_cells(self)]])


class Routes(tuple[Route, ...]):
    """The result of [`eqopt.groups.routes`][]: a tuple with a route per parameter.

    `print` shows it as a table. Parameters that differ only in their indices share a
    line.
    """

    def __str__(self) -> str:
        lines: dict[tuple, list[Route]] = {}
        for route in self:
            pattern = re.sub(r"\[\d+\]", "[#]", route.path)
            lines.setdefault((pattern, *_cells(route, 0)), []).append(route)
        rows = [
            [_merged([x.path for x in some], key[0]), *_cells(some[0], _bytes(some))]
            for key, some in lines.items()
        ]
        return aligned([_HEAD, *rows])


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
    check_parameters("routes", params)
    shapes = shapes_if_stored(parameters(params))
    report = Report(shapes)
    state = eqx.filter_eval_shape(opt.init, params)
    opt._route(report, shapes)
    report.leave_out_shared()
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
    axes, shape = found.axes, tuple(x.shape)
    made = ()
    if axes is not None:
        count = size(shape, axes.stack)
        blocks = collections.Counter((m, n) for _, m, n in axes.matrices(shape))
        made = tuple((count * n, *sides) for sides, n in blocks.items())
    return Route(
        path or "(the root)",
        shape,
        str(x.dtype),
        found.taken_by or "-",
        made,
        axes.output if axes is not None else (),
        axes.reduction if axes is not None else (),
        found.weight_decay,
        found.factor,
        nbytes,
    )


def _bytes(some: list[Route]) -> int:
    return sum(route.nbytes for route in some)


def _cells(route: Route, nbytes: int | None = None) -> list[str]:
    made = [f"{n} of {rows} x {columns}" for n, rows, columns in route.matrices]
    axes = f"{_axes(route.outputs)} x {_axes(route.inputs)}" if made else "-"
    return [
        str(route.shape),
        route.taken_by,
        " + ".join(made) or "-",
        axes,
        _text(route.weight_decay),
        _text(route.factor),
        f"{route.nbytes if nbytes is None else nbytes:,}",
    ]


def _axes(axes: tuple[int, ...]) -> str:
    return ",".join(map(str, axes)) or "none"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, np.ndarray):
        return _span(value)
    return f"{value:.4g}" if isinstance(value, int | float) else type(value).__name__
