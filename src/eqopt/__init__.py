"""Gradient-based optimization for JAX and Equinox.

Every gradient transformation, optimizer, combinator and schedule is a frozen
`equinox.Module`. The stub next to this file lists the public names.
"""

from ._typecheck import check_package


# Rooms are imported lazily, long after this line has run, and checked all the same.
# `JAXTYPING_DISABLE=1` in the environment turns the checks off.
check_package("eqopt")

from ._lazy import attach_stub  # noqa: E402


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__version__ = "0.1.0"
