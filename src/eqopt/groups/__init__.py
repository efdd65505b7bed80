"""Rules that select parameters, for masks, labels and factors."""

from .._lazy import attach_stub


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
