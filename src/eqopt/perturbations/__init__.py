"""Derivatives of functions that have none: of their means over random perturbations."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
