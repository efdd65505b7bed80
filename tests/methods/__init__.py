"""Every optimizer once, with all facts that the laws, parity, benchmarks and pages use.

A new optimizer is a new module in the folder of its family, with the same name as its
source. The laws and parity tests use it from here, `python -m benchmarks` and `python
-m benchmarks.training` run it, and `python -m tests.methods` writes it into the
overview in the documentation.
"""

import importlib
import pkgutil

import eqopt

from .method import Method


FAMILIES = (
    "sgd",
    "adam",
    "adaptive",
    "sign",
    "layerwise",
    "matrix",
    "polyak",
    "parameter_free",
    "schedule_free",
    "second_order",
)


def _modules(family: str) -> list[str]:
    """The modules of a family: first the one with the family's name, then by name."""
    room = importlib.import_module(f"{__name__}.{family}")
    names = [module.name for module in pkgutil.iter_modules(room.__path__)]
    return sorted(names, key=lambda name: (name != family, name))


# By family, and by the module that they have here and in `eqopt._optimizers`.
BY_MODULE: dict[str, dict[str, list[Method]]] = {
    family: {
        name: importlib.import_module(f"{__name__}.{family}.{name}").METHODS
        for name in _modules(family)
    }
    for family in FAMILIES
}
BY_FAMILY = {
    family: [method for methods in modules.values() for method in methods]
    for family, modules in BY_MODULE.items()
}
METHODS = {m.name: m for methods in BY_FAMILY.values() for m in methods}

# These have a rule for arrays of all shapes. Others that treat parameters as matrices
# have to be told what an array with three or more axes is.
OF_ANY_ARRAY = eqopt.Adafactor, eqopt.CAME, eqopt.SM3
