"""Curvature: products with the Hessian, and the diagonals of Hessian and Fisher."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
