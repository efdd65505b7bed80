"""Arithmetic that stays finite even if the textbook formula does not."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
