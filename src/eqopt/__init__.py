"""Gradient-based optimization for JAX and Equinox.

Every gradient transformation, optimizer, combinator and schedule is a frozen
`equinox.Module`. What there is to import stands in the stub beside this file.
"""

# JAX and Equinox come first: whatever an instrumented module is the first to import
# would be compiled from source, which for JAX takes seconds.
import equinox  # noqa: F401
import jax  # noqa: F401
from jaxtyping import install_import_hook

from . import _typecheck  # noqa: F401  # which checks everything but itself


# Stays installed: rooms are imported lazily, long after this line has run.
# `JAXTYPING_DISABLE=1` in the environment turns the checks off.
install_import_hook("eqopt", "eqopt._typecheck.when_called")

from ._lazy import attach_stub  # noqa: E402


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__version__ = "0.1.0"
