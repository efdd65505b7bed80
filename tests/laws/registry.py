"""Every transformation once: the subjects of the laws.

A new transformation is one more row, in the module of its family. Whatever is special
about it stands in its row.
"""

import importlib
import pkgutil
import types

import equinox as eqx

import eqopt
from eqopt import AbstractOptimizer, AbstractTransformation

from . import rows


FAMILIES = [
    importlib.import_module(f"{rows.__name__}.{module.name}")
    for module in pkgutil.iter_modules(rows.__path__)
]
REGISTRY = [row for family in FAMILIES for row in family.ROWS]


def _telling(family: types.ModuleType) -> list[str]:
    """The row that says most: the first building block's first."""
    first = {row.subject: row.name for row in reversed(family.ROWS)}
    blocks = [n for cls, n in first.items() if not issubclass(cls, AbstractOptimizer)]
    return blocks[-1:]


TELLING = {name for family in FAMILIES for name in _telling(family)}


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
