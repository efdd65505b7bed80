"""Gradient-based optimization for JAX and Equinox.

Every gradient transformation, optimizer, combinator and schedule is a frozen
`equinox.Module`. The stub next to this file lists the public names.
"""

from ._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__version__ = "0.1.0"
