"""Storing the arrays of a state, and the parameters, in fewer bytes."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
