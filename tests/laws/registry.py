"""Every transformation once: the subjects of the laws.

The rows of optimizers are in `tests/methods`. All other rows are in `tests/laws/rows`,
in the module for their kind. A row also states what is special about its
transformation.
"""

import importlib
import pkgutil
import types
from collections.abc import Callable, Collection, Container

import equinox as eqx
import pytest

import eqopt
from eqopt import AbstractTransformation

from ..methods import METHODS
from . import rows
from .row import Row


REGISTRY: list[Row] = [row for method in METHODS.values() for row in method.laws]
for module in pkgutil.iter_modules(rows.__path__):
    REGISTRY += importlib.import_module(f"{rows.__name__}.{module.name}").ROWS

# The row of each family and kind that tells most: the quick set tests the laws on
# these.
TELLING = {
    "AddNoise",
    "ApplyIfFinite(SGD)",
    "Chain()",
    "Chain(from_optax)",
    "ParamEMA(SGD)",
    "Prodigy",
    "SAM(SGD)",
    "ScaleByAdam",
    "ScaleByBacktrackingLinesearch",
    "ScaleByLBFGS",
    "ScaleByMuon",
    "ScaleByTrustRatio",
    "ScheduleFree(SGD)",
}
EVERY = {row.name for row in REGISTRY}
assert EVERY >= TELLING


_FIRST = {row.subject: row.name for row in reversed(REGISTRY)}


def _first_of_each(*without: type) -> set[str]:
    """The first row of each class, except for subclasses of some."""
    return {name for cls, name in _FIRST.items() if not issubclass(cls, without)}


# A law runs on the rows in which it may fail for a reason of its own:
#
# - Laws of the protocol itself, of recipes and of options: on `EVERY` row, or on one of
#   each of the `CLASSES`.
# - Laws of equations and states: on one row of each class that has some. A recipe is a
#   chain of these, so these are the `PARTS`. This is the default.
# - Laws of the engine, and costly ones: on one row of each of the `KINDS`. The engine
#   handles calls of all leafwise methods alike, and of all methods for matrices.
CLASSES = _first_of_each()
PARTS = _first_of_each(eqopt.AbstractOptimizer) | TELLING
ALIKE = eqopt.AbstractLeafwise, eqopt.AbstractMatrixwise, eqopt.AbstractOptimizer
KINDS = _first_of_each(*ALIKE) | TELLING


def law(
    quick: Collection[str] = TELLING, names: Container[str] | None = None
) -> Callable[[Callable], Callable]:
    """Runs a test on the rows in `names`, except for rows that are exempt.

    By default, these are the `PARTS` and what is quick. Rows are slow unless `quick`
    names them.
    """
    names = PARTS.union(quick) if names is None else names

    def of_each_row(test):
        params = [
            pytest.param(
                row, id=row.name, marks=[] if row.name in quick else [pytest.mark.slow]
            )
            for row in REGISTRY
            if test.__name__ not in row.exempt and row.name in names
        ]
        return pytest.mark.parametrize("row", params)(test)

    return of_each_row


def concrete_transformations() -> set[type]:
    """The classes of all public transformations that can be instantiated."""
    public = [getattr(eqopt, name) for name in dir(eqopt)]
    rooms = [room for room in public if isinstance(room, types.ModuleType)]
    public += [getattr(room, name) for room in rooms for name in dir(room)]
    return {
        cls
        for cls in public
        if isinstance(cls, type)
        and issubclass(cls, AbstractTransformation)
        and not eqx.is_array(cls)
        and not getattr(cls, "__abstractmethods__", None)
    }
