"""Eigenvalues, roots of matrices and least squares, by iterations that compile well."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
